"""An analysis as tables: heads and rows of text, for reports and documents."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from l0drop.study.source_need import NAMES, QUESTION
from l0drop.study.sweep import LEARNED

Analysis = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]

MASS = {
    "baseline": "dense, all words",
    "baseline_kept": "dense, words that the sparse model keeps",
    "baseline_renormalised": "the same words, weights scaled to a sum of 1",
    "sparse": "sparse, kept words",
    "entmax": "sparse attention (entmax), all words",
}
CLOSED_GATES = "closed gates"
CLOSED, BY_LAYER = "Gates closed manually", "Sparsity by layer"
EARLIER_NAMES = {"what the model closes": "the model's choice", "nothing": "none"}
"""Names of closed gates in older files."""
ENTROPY_NOTE = (
    "Entropy (nats) of the last encoder layer's self-attention, averaged over heads, then over positions that the "
    "sparse model keeps or drops."
)
NOT_DRAWN = (CLOSED, BY_LAYER, QUESTION)
"""Titles of tables that have no figure."""
GROUPS = {"BPEH": "first pieces (BPEH)", "BPEO": "later pieces (BPEO)", "rest": "other words", "EOS": "EOS"}
"""Pieces belong to split words; the other groups have whole words."""


def tables(analysis: Analysis) -> Iterator[tuple[str, Table, str]]:
    """Every table of the analysis of a run or a sweep: title, table, note."""
    points = sorted(analysis.get("points", [analysis]), key=lambda point: point.get("sparsity", 0.0))
    layered = [(_name(point), point) for point in points if "layers" in point.get("gates", {})]
    for part, title, make in (
        ("groups", "Sparsity by group of tokens", groups_table),
        ("mass", "Attention mass per word", mass_table),
        ("entropy", "Entropy of the encoder's attention", entropy_table),
    ):
        having = [point for point in points if part in point]
        if having:
            yield title, make(having), ENTROPY_NOTE if part == "entropy" else _note(having[0][part])
    if layered:
        yield BY_LAYER, layers_table(layered), "Sparsity after each layer of the encoder."
    if "interventions" in analysis:
        yield CLOSED, interventions_table(analysis), _note(analysis["interventions"])
    if "source" in analysis:
        yield QUESTION, source_table(analysis), _note(analysis["source"])


def _note(part: Mapping[str, Any]) -> str:
    """The description of a part, as a sentence; without the code marks that older files have."""
    what = str(part.get("what", "")).replace("`", "")
    return what and f"{what[0].upper()}{what[1:]}."


def groups_table(points: Sequence[Analysis]) -> Table:
    """The sparsity of every group of tokens, one column per point."""
    head = ["group", "tokens", *map(_name, points)]
    rows = []
    for name, found in points[0]["groups"]["groups"].items():
        shares = [_percent(point["groups"]["groups"][name]["sparsity"]) for point in points]
        rows.append([GROUPS.get(name, f"{name} words" if name != "punctuation" else name), f"{found['tokens']:,}"])
        rows[-1] += shares
    return head, rows


def layers_table(analyses: Sequence[tuple[str, Analysis]]) -> Table:
    """Sparsity of the gates after each encoder layer; one row per model."""
    count = len(analyses[0][1]["gates"]["layers"])
    head = ["gates after layer", *map(str, range(1, count + 1))]
    return head, [[name, *(_percent(gates["sparsity"]) for gates in one["gates"]["layers"])] for name, one in analyses]


def mass_table(points: Sequence[Analysis]) -> Table:
    """Cross-attention summed over the target: the mean per word, and the share of words with little."""
    head = ["model", "attention of", "words", "mean mass", "share under 0.6", "share under 0.6 of the mean"]
    rows = []
    for number, point in enumerate(points):
        systems = point["mass"]["systems"]
        for name in (name for name in MASS if name in systems):
            found, of_all = systems[name], name in ("baseline", "entmax")
            if of_all and number:  # the same for every point
                continue
            shares = [_percent(found[key]) for key in ("share_under_0.6", "share_under_0.6_of_mean")]
            rows.append(
                ["" if of_all else _name(point), MASS[name], f"{found['words']:,}", f"{found['mean']:.2f}", *shares]
            )
    return head, rows


def entropy_table(points: Sequence[Analysis]) -> Table:
    """Nats, of the last encoder layer, at positions that the sparse model keeps and drops, for both models."""
    head = ["model", "kept, sparse", "kept, dense", "dropped, sparse", "dropped, dense"]
    rows = []
    for point in points:
        found = point["entropy"]
        cells = [
            _number(found.get(who, {}).get(which)) for which in ("kept", "dropped") for who in ("sparse", "baseline")
        ]
        rows.append([_name(point), *cells])
    return head, rows


def interventions_table(analysis: Analysis) -> Table:
    """The cost of closing words manually, for the sparse model and the dense one."""
    systems = analysis["interventions"]["systems"]
    scores = [row["score"]["name"] for rows in systems.values() for row in rows if row.get("score")]
    head = ["model", CLOSED_GATES, "share", "sparsity", "cross-entropy", *scores[:1]]
    lines = []
    for name, rows in systems.items():
        for row in rows:
            share = f"{row['share']:.0%}" if row["share"] else ""
            closed = EARLIER_NAMES.get(row["closed"], row["closed"])
            model = "dense" if name == "baseline" else name
            line = [model, closed, share, _percent(row["sparsity"]), f"{row['cross_entropy']:.3f}"]
            lines.append(line + ([f"{row['score']['value']:.2f}" if row.get("score") else ""] if scores else []))
    return head, lines


def source_table(analysis: Analysis) -> Table:
    """Cross-entropy and score with the right sources and with wrong ones."""
    found = {label: analysis["source"][name] for name, label in NAMES.items()}
    scores = [one["score"]["name"] for one in found.values() if one["score"]]
    rows = []
    for label, one in found.items():
        score = [f"{one['score']['value']:.2f}" if one["score"] else ""] if scores else []
        rows.append([label, f"{one['cross_entropy']:.3f}", *score])
    return ["source", "cross-entropy", *scores[:1]], rows


def _name(point: Analysis) -> str:
    """A model by its sparsity; a rule by its name too."""
    dropped = f"{point['sparsity']:.1%} dropped"
    return dropped if point.get("kind", "target") in LEARNED else f"{point['run']}, {dropped}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
