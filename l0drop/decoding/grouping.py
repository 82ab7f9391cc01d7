"""Groups of sentences to compute together: the best trade-off between padding and the fixed cost of a group."""

from collections.abc import Callable, Sequence


def cheapest_groups(sizes: Sequence[int], cost: Callable[[int, int], float]) -> list[list[int]]:
    """Indices of `sizes`, largest first, in the groups with the lowest total cost.

    `cost(members, largest)` is the cost of a group.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    # splitting equal sizes gains nothing, so a group starts only where sizes decrease
    starts = [i for i in range(len(order)) if i == 0 or sizes[order[i]] != sizes[order[i - 1]]]
    # best[end]: the lowest cost of order[:end], and the start of its last group
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


def split_evenly(group: Sequence[int], most: int) -> list[list[int]]:
    """The group in parts of at most `most` members (at least one), of nearly equal size."""
    parts = -(-len(group) // max(1, most))
    return [list(group[len(group) * i // parts : len(group) * (i + 1) // parts]) for i in range(parts)]
