"""An analysis as tables, for the terminal, reports and documents."""

from collections.abc import Callable, Iterator, Sequence

from l0drop.data.score import Score
from l0drop.runs.analysis import AnalysedText, Analysis, GateShares, ModelAnalysis, SweepAnalysis
from l0drop.runs.table import Table, percent
from l0drop.study.source_need import NAMES, QUESTION, by_source

MASS = {
    "baseline": "dense, all words",
    "baseline_kept": "dense, words that the sparse model keeps",
    "baseline_renormalised": "the same words, weights scaled to a sum of 1",
    "sparse": "sparse, kept words",
    "sparse_zero_row": "the same with a zero row, without training for it",
    "entmax": "sparse attention (entmax), all words",
}
CLOSED_GATES = "closed gates"
CLOSED, BY_LAYER = "Gates closed manually", "Sparsity by layer"
ENTROPY_NOTE = (
    "Entropy (nats) of the last encoder layer's self-attention, averaged over heads, then over positions that the "
    "sparse model keeps or drops."
)
NOT_DRAWN = (CLOSED, BY_LAYER, QUESTION)
"""Titles of tables that have no figure."""
GROUPS = {"BPEH": "first pieces (BPEH)", "BPEO": "later pieces (BPEO)", "rest": "other words", "EOS": "EOS"}
"""Pieces belong to split words; the other groups have whole words."""
SHORT_NAMES = {"punctuation": "punct."}
"""Group names that would not fit into 80 columns."""


def tables(analysis: Analysis | SweepAnalysis) -> Iterator[tuple[str, Table]]:
    """Every table of the analysis of a run or a sweep, with its title."""
    found = analysis.points if isinstance(analysis, SweepAnalysis) else [analysis]
    points = sorted(found, key=lambda point: point.sparsity or 0.0)
    makers: dict[str, tuple[str, Callable[[Sequence[ModelAnalysis]], Table]]] = {
        "groups": ("Sparsity by group of tokens", groups_table),
        "mass": ("Attention mass per word", mass_table),
        "entropy": ("Entropy of the encoder's attention", entropy_table),
    }
    for part, (title, make) in makers.items():
        if having := [point for point in points if getattr(point, part) is not None]:
            yield title, make(having)
    if layered := [(point.name, point.gates.layers) for point in points if point.gates and point.gates.layers]:
        yield BY_LAYER, layers_table(layered)
    if isinstance(analysis, SweepAnalysis):
        return
    if analysis.interventions is not None:
        yield CLOSED, interventions_table(analysis)
    if analysis.source is not None:
        yield QUESTION, source_table(analysis)


def overview_tables(analysis: SweepAnalysis) -> Iterator[tuple[str, Table]]:
    """A row per point, for a terminal of 80 columns: the sparsity of every group, and entropies."""
    points = analysis.points
    names = next((list(point.groups.groups) for point in points if point.groups is not None), [])
    rows = []
    for point in points:
        rates = [None if point.groups is None else point.groups.groups[name].sparsity for name in names]
        rows.append([point.run, percent(point.sparsity), *("" if rate is None else f"{rate:.0%}" for rate in rates)])
    yield "sparsity by group", Table(["model", "all", *(SHORT_NAMES.get(name, name) for name in names)], rows)
    if any(point.entropy is not None for point in points):
        rows = [[point.run, *_entropies(point)[::2]] for point in points]
        yield "self-attention entropy, nats", Table(["model", "kept", "dropped"], rows)


def _note(what: str) -> str:
    """The description of a part, as a sentence; without the code marks that older files have."""
    shown = what.replace("`", "")
    return shown and f"{shown[0].upper()}{shown[1:]}."


def groups_table(points: Sequence[ModelAnalysis]) -> Table:
    """The sparsity of every group of tokens, one column per point."""
    groups = [point.groups for point in points if point.groups is not None]
    rows = []
    for name, found in groups[0].groups.items():
        shares = [percent(one.groups[name].sparsity) for one in groups]
        label = GROUPS.get(name, f"{name} words" if name != "punctuation" else name)
        rows.append([label, f"{found.tokens:,}", *shares])
    return Table(["group", "tokens", *(point.name for point in points)], rows, _note(groups[0].what))


def layers_table(layered: Sequence[tuple[str, Sequence[GateShares]]]) -> Table:
    """Sparsity of the gates after each encoder layer; one row per model."""
    head = ["gates after layer", *map(str, range(1, len(layered[0][1]) + 1))]
    rows = [[name, *(percent(gates.sparsity) for gates in layers)] for name, layers in layered]
    return Table(head, rows, "Sparsity after each layer of the encoder.")


def mass_table(points: Sequence[ModelAnalysis]) -> Table:
    """Cross-attention summed over the target: the mean per word, and the share of words with little."""
    head = ["model", "attention of", "words", "mean mass", "share under 0.6", "share under 0.6 of the mean"]
    rows, notes = [], []
    for number, point in enumerate(points):
        assert point.mass is not None
        for name in (name for name in MASS if name in point.mass.systems):
            found, of_all = point.mass.systems[name], name in ("baseline", "entmax")
            if of_all and number:  # the same for every point
                continue
            shares = [percent(found.share_under), percent(found.share_under_of_mean)]
            model = "" if of_all else point.name
            rows.append([model, MASS[name], f"{found.words:,}", f"{found.mean:.2f}", *shares])
        if not number:
            notes.append(_note(point.mass.what))
        if len(points) == 1 and (on_dropped := point.mass.share_on_dropped):
            names = {"baseline": "dense", "sparse_zero_row": "sparse with a zero row"}
            shown = (f"{names.get(name, name)} {share:.1%}" for name, share in on_dropped.items())
            notes.append(f"Attention on dropped tokens: {', '.join(shown)}.")
    return Table(head, rows, " ".join(notes), prose=frozenset({"attention of"}))


def entropy_table(points: Sequence[ModelAnalysis]) -> Table:
    """Nats, of the last encoder layer, at positions that the sparse model keeps and drops, for both models."""
    head = ["model", "kept, sparse", "kept, dense", "dropped, sparse", "dropped, dense"]
    return Table(head, [[point.name, *_entropies(point)] for point in points], ENTROPY_NOTE)


def _entropies(point: ModelAnalysis) -> list[str]:
    """Kept, then dropped positions; of each, the sparse model, then the dense one."""
    models = (None, None) if point.entropy is None else (point.entropy.sparse, point.entropy.baseline)
    kept = [_number(None if found is None else found.kept) for found in models]
    return kept + [_number(None if found is None else found.dropped) for found in models]


def interventions_table(analysis: Analysis) -> Table:
    """The cost of closing words manually, for the sparse model and the dense one."""
    assert analysis.interventions is not None
    systems = analysis.interventions.systems
    name = _score_name([row.score for rows in systems.values() for row in rows], analysis.text)
    rows = [
        [
            "dense" if system == "baseline" else system,
            row.closed,
            f"{row.share:.0%}" if row.share else "",
            percent(row.sparsity),
            f"{row.cross_entropy:.3f}",
            _score(row.score),
        ]
        for system, found in systems.items()
        for row in found
    ]
    head = ["model", CLOSED_GATES, "share", "sparsity", "cross-entropy", name]
    return Table(
        head, rows, _note(analysis.interventions.what), prose=frozenset({CLOSED_GATES})
    ).without_empty_columns()


def source_table(analysis: Analysis) -> Table:
    """Cross-entropy and score with the right sources and with wrong ones."""
    assert analysis.source is not None
    found = by_source(analysis.source)
    rows = [[NAMES[name], f"{one.cross_entropy:.3f}", _score(one.score)] for name, one in found.items()]
    head = ["source", "cross-entropy", _score_name([one.score for one in found.values()], analysis.text)]
    return Table(head, rows, _note(analysis.source.what)).without_empty_columns()


def _score(score: Score | None) -> str:
    """Empty for outputs that are the targets themselves."""
    return "" if score is None else f"{score.value:.2f}"


def _score_name(scores: Sequence[Score | None], text: AnalysedText) -> str:
    name = next((score.name for score in scores if score is not None), "score")
    return name if text.target == "reference" else f"{name} agreement"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
