"""Which sentences of a batch to compute together: padding costs, and so does every group."""

from collections.abc import Callable, Sequence


def cheapest_groups(sizes: Sequence[int], cost: Callable[[int, int], float]) -> list[list[int]]:
    """Places in `sizes`, largest first, cut into groups; of all ways to cut the sorted sizes, the cheapest.

    `cost(members, largest)` is what a group costs.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    # a cut between equal sizes gains nothing, so a group may start only where they get smaller
    starts = [place for place in range(len(order)) if place == 0 or sizes[order[place]] != sizes[order[place - 1]]]
    # by the place where the rest begins: the cheapest cost of what comes before, and where its last group starts
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    for end in [*starts[1:], len(order)]:
        best[end] = min(
            (best[first][0] + cost(end - first, sizes[order[first]]), first) for first in starts if first < end
        )
    groups: list[list[int]] = []
    end = len(order)
    while end:
        first = best[end][1]
        groups.append(order[first:end])
        end = first
    return groups[::-1]


def within(group: Sequence[int], most: int) -> list[list[int]]:
    """The group in parts of at most so many members, and at least one, as equal as can be."""
    parts = -(-len(group) // max(1, most))
    return [list(group[len(group) * i // parts : len(group) * (i + 1) // parts]) for i in range(parts)]
