"""An analysis as tables: head and rows of text, for reports and documents."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from l0drop.study.sweep import LEARNED

Analysis = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]

MASS = {
    "baseline": "baseline, every word",
    "baseline_kept": "baseline, words that the sparse model keeps",
    "baseline_renormalised": "the same, as if they were all there is",
    "sparse": "sparse model, words that it keeps",
    "entmax": "sparse attention, every word",
}
CLOSED_BY_HAND = "closed by hand"
CLOSED, BY_LAYER = "Gates closed by hand", "What each layer drops"
NOT_DRAWN = (CLOSED, BY_LAYER)
"""Titles of the tables of what no figure shows."""
GROUPS = {"BPEH": "first pieces (BPEH)", "BPEO": "later pieces (BPEO)", "rest": "other words", "EOS": "EOS"}
"""Of pieces: those of split words. The others are words in one piece."""


def tables(analysis: Analysis) -> Iterator[tuple[str, Table, str]]:
    """Every table of the analysis of a run or a sweep, with its title before it and a note behind it."""
    points = sorted(analysis.get("points", [analysis]), key=lambda point: point.get("sparsity", 0.0))
    layered = [(_name(point), point) for point in points if "layers" in point.get("gates", {})]
    for part, title, make in (
        ("groups", "What is dropped", groups_table),
        ("mass", "Attention mass per word", mass_table),
        ("entropy", "Entropy of the encoder's attention", entropy_table),
    ):
        having = [point for point in points if part in point]
        if having:
            yield title, make(having), _note(having[0][part])
    if layered:
        yield BY_LAYER, layers_table(layered), "Sparsity behind each layer of the encoder."
    if "interventions" in analysis:
        yield CLOSED, interventions_table(analysis), _note(analysis["interventions"])


def _note(part: Mapping[str, Any]) -> str:
    """What was measured, as a sentence."""
    what = str(part.get("what", ""))
    return what and f"{what[0].upper()}{what[1:]}."


def groups_table(points: Sequence[Analysis]) -> Table:
    """The sparsity of every group of tokens, one column for each point."""
    head = ["group", "tokens", *map(_name, points)]
    rows = []
    for name, found in points[0]["groups"]["groups"].items():
        shares = [_percent(point["groups"]["groups"][name]["sparsity"]) for point in points]
        rows.append([GROUPS.get(name, f"{name} words" if name != "punctuation" else name), f"{found['tokens']:,}"])
        rows[-1] += shares
    return head, rows


def layers_table(analyses: Sequence[tuple[str, Analysis]]) -> Table:
    """What gates between layers drop, and those behind the last one; a row for each model, by its name."""
    count = len(analyses[0][1]["gates"]["layers"])
    head = ["gates behind layer", *map(str, range(1, count + 1))]
    return head, [[name, *(_percent(gates["sparsity"]) for gates in one["gates"]["layers"])] for name, one in analyses]


def mass_table(points: Sequence[Analysis]) -> Table:
    """Cross-attention summed over the target: how much a word gets, and how many words get little."""
    head = ["model", "whose", "words", "mean mass", "share under 0.6", "share under 0.6 of the mean"]
    rows = []
    for place, point in enumerate(points):
        systems = point["mass"]["systems"]
        for name in (name for name in MASS if name in systems):
            found, of_all = systems[name], name in ("baseline", "entmax")
            if of_all and place:  # the same for every point
                continue
            shares = [_percent(found[key]) for key in ("share_under_0.6", "share_under_0.6_of_mean")]
            rows.append(
                ["" if of_all else _name(point), MASS[name], f"{found['words']:,}", f"{found['mean']:.2f}", *shares]
            )
    return head, rows


def entropy_table(points: Sequence[Analysis]) -> Table:
    """Nats, of the last encoder layer, at positions that the sparse model keeps and drops, beside the baseline's."""
    head = ["model", "positions kept", "the same, baseline", "positions dropped", "the same, baseline"]
    rows = []
    for point in points:
        found = point["entropy"]
        cells = [
            _number(found.get(who, {}).get(which)) for which in ("kept", "dropped") for who in ("sparse", "baseline")
        ]
        rows.append([_name(point), *cells])
    return head, rows


def interventions_table(analysis: Analysis) -> Table:
    """What closing words by hand costs, of the sparse model and of the baseline."""
    systems = analysis["interventions"]["systems"]
    scores = [row["score"]["name"] for rows in systems.values() for row in rows if row.get("score")]
    head = ["model", CLOSED_BY_HAND, "share", "sparsity", "cross-entropy", *scores[:1]]
    lines = []
    for name, rows in systems.items():
        for row in rows:
            share = f"{row['share']:.0%}" if row["share"] else ""
            line = [name, row["closed"], share, _percent(row["sparsity"]), f"{row['cross_entropy']:.3f}"]
            lines.append(line + ([f"{row['score']['value']:.2f}" if row.get("score") else ""] if scores else []))
    return head, lines


def _name(point: Analysis) -> str:
    """A model by its share, and a rule by its name too."""
    dropped = f"{point['sparsity']:.1%} dropped"
    return dropped if point.get("kind", "target") in LEARNED else f"{point['run']}, {dropped}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
