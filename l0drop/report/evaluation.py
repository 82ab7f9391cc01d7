"""The tables of scores and evaluations, for the terminal and for reports."""

from collections.abc import Sequence

from l0drop.report.findings import Findings
from l0drop.runs.evaluation import Evaluation, Missing, Tail
from l0drop.runs.table import Table
from l0drop.study.verdict import verdict

STYLES = {"non-inferior": "good", "worse": "bad"}
KIND = "kind"
KINDS = {"start": "dense", "continued": "dense", "dense": "dense", "sparse": "learned gate", "rule": "rule"}
TAIL = {"numbers": "numbers of the source", "names": "names", "negations": "negations"}


def points_table(findings: Findings) -> Table:
    """Quality, sparsity and speed of every system; a column without any value is omitted."""
    best = findings.recommended
    head = ["", "dropped", findings.metric, "difference", "95% bound", "verdict", "speed-up", "speed-up, decoder"]
    rows = [
        [
            row.label,
            _number(row.sparsity, ".1%"),
            _number(row.score, ".2f"),
            _number(row.difference, "+.2f"),
            _number(row.lower, "+.2f"),
            found.label if (found := findings.verdict(row)) else "",
            "" if row.speed is None else f"{row.speed.end_to_end:.2f}",
            _number(None if row.speed is None else row.speed.decode, ".2f"),
        ]
        for row in findings.rows
    ]
    marked = None if best is None else findings.rows.index(best)
    return Table(
        head, rows, _points_note(findings), marked, frozenset({"verdict"}), _styles(findings)
    ).without_empty_columns()


def _styles(findings: Findings) -> dict[str, str]:
    """The class of each verdict's cell."""
    verdicts = filter(None, map(findings.verdict, findings.rows))
    return {found.label: STYLES[found.kind] for found in verdicts if found.kind in STYLES}


def _points_note(findings: Findings) -> str:
    """The meaning of the columns."""
    parts = [f"{findings.metric} on {findings.text}."]
    if findings.compared_with is not None:
        parts.append(f"Differences are to {findings.compared_with}.")
    if findings.seeds > 1:
        parts.append(f"Scores and differences are means over {findings.seeds} pairs of models.")
    if findings.judged:
        parts.append(
            "95% bound: the difference is above it with 95% confidence (one-sided). Non-inferior: the bound is above "
            f"{-findings.margin:g}."
        )
        if findings.seeds == 1:
            parts.append("Bounds cover other sentences, not other training runs.")
        if len(findings.points) > 1:
            parts.append("Each model is tested separately: among many, one may pass by chance.")
    where = sorted({row.speed.where for row in findings.rows if row.speed is not None})
    if where:
        parts.append(f"Speed-up of the short memory over the dense memory, CPU time ({'; '.join(where)}).")
    return " ".join(parts)


def rules_table(findings: Findings) -> Table:
    """Table 2 of the paper: rules compared with the learned gate and the dense models."""
    rows = [
        [row.name if row.is_gated else row.label, KINDS[row.role], _number(row.sparsity, ".1%"),
         _number(row.score, ".2f"), _number(row.difference, "+.2f")]
        for row in findings.rows
    ]  # fmt: skip
    note = "As in table 2 of the paper. A rule has nothing to learn; the model is fine-tuned with the rule applied."
    return Table(["", KIND, "dropped", findings.metric, "difference"], rows, note, prose=frozenset({KIND}))


def scores_table(evaluation: Evaluation, system: str, baseline: str, runs: int | None = None) -> Table:
    """All metrics of the first `runs` systems, or of all, and the differences to their baselines.

    system, baseline: their names in the head.
    """
    compared = bool(evaluation.first.differences)
    shown = evaluation.runs[:runs]
    rows = []
    for number, run in enumerate(shown, 1):
        start = f"{number}: " if len(shown) > 1 else ""
        for metric, score in run.system.scores.items():
            cells = [start + score.name, f"{score.value:.2f}"]
            if compared:
                found = run.differences[metric]
                cells += [f"{found.baseline:.2f}", f"{found.difference:+.2f}"]
                cells += ["{:+.2f} to {:+.2f}".format(*found.interval), f"{found.lower:+.2f}, {found.upper:+.2f}"]
            rows.append(cells)
        for name, score in run.system.controls.items() if runs is None else ():
            cells = [f"{start}{score.name}, {name.replace('_', ' ')}", f"{score.value:.2f}"]
            rows.append(cells + [""] * 4 * compared)
    head = ["metric", system, *((baseline, "difference", "95% interval", "95% bounds") if compared else ())]
    return Table(head, rows, _scores_note(evaluation, len(shown)) if compared else "")


def _scores_note(evaluation: Evaluation, shown: int) -> str:
    metric = evaluation.judging.metric
    first = evaluation.first.differences[metric]
    note = (
        f"One-sided 95% bounds over {first.units:,} {first.unit}s, for this pair of models only (paired bootstrap, "
        f"{first.resamples:,} resamples)."
    )
    if shown == len(evaluation.runs):
        return note
    found = evaluation.over_seeds[metric]
    each = ", ".join(f"{difference:+.2f}" for difference in found.differences)
    return f"{note} These are the scores of the first of {found.seeds} pairs; the differences of all are {each}."


def sweep_table(names: Sequence[str], found: Sequence[Evaluation]) -> Table:
    """Score, verdict and tail risk of every point of a sweep."""
    first = found[0]
    metric = first.score_name
    rows = []
    if first.first.baseline is not None:
        rows.append(["dense, continued", "", f"{first.mean_score('baseline'):.2f}", "", "", ""])
    for name, one in zip(names, found, strict=True):
        cells = [name, _number(one.first.system.sparsity, ".1%"), f"{one.score.value:.2f}"]
        if (compared := one.difference) is not None:
            bounds = f"[{compared.lower:+.2f}, {compared.upper:+.2f}]"
            cells += [f"{compared.difference:+.2f} {bounds}", verdict(compared, metric).label]
        else:
            cells += ["", "no verdict"]
        rows.append([*cells, f"{one.first.tail_or_agreement.chrf.losing:.1%}"])
    threshold = first.first.tail_or_agreement.chrf.threshold
    head = ["model", "dropped", metric, "difference [95% bounds]", "verdict", f"lose over {threshold:.0f} chrF"]
    note = (
        f"{first.scored:,} outputs. Differences are to dense, continued. Bounds are one-sided and over texts: they "
        "and the verdicts speak for these models only. Each point is tested separately; among many, one may pass by "
        "chance."
    )
    if first.difference is not None:
        note += f" Non-inferior: the lower bound is above -{first.judging.margin:g} (`margin`)."
    if first.references is not None:
        note += f" Scored against {dense_references(first)}: agreement with that model, not quality."
    return Table(head, rows, note, prose=frozenset({"verdict"}))


def dense_references(evaluation: Evaluation) -> str:
    """The dense outputs that stand in for references, with their beams: those of training may differ."""
    decoding = None if evaluation.dense is None else evaluation.dense.decoding
    beams = None if decoding is None else decoding.get("num_beams")
    return str(evaluation.references) + ("" if beams is None else f" (beams: {beams})")


def conclusion(evaluation: Evaluation) -> str:
    """The verdict in words, or why there is none."""
    if evaluation.verdict is not None:
        return evaluation.verdict
    if evaluation.references is not None:
        return "no verdict: agreement with the dense model is not quality; a verdict needs references"
    return "no verdict: there is no `baseline` to compare with"


def tail_overview(findings: Findings) -> Table | None:
    """Tail risk of every model that was compared with a dense one; None if there is none."""
    rows, threshold = [], 0.0
    for row in findings.points:
        evaluation = findings.evaluations.get(row.name)
        if evaluation is None or (tail := evaluation.first.tail) is None:
            continue
        threshold = tail.chrf.threshold
        counted = (_counted(tail, part) for part in TAIL)
        lost = ["" if found.lost is None else f"{found.lost} of {found.expected:,}" for found in counted]
        rows.append([row.label, f"{tail.chrf.losing:.1%}", f"{tail.chrf.gaining:.1%}", *lost])
    if not rows:
        return None
    head = [
        "",
        f"lose over {threshold:.0f} chrF",
        f"gain over {threshold:.0f} chrF",
        *(f"{name} lost" for name in TAIL),
    ]
    note = (
        "Shares of sentences whose chrF falls or rises by more than the threshold against the dense model. Lost: in "
        f"the dense output and in the human reference, but not in the gated output. {which_seed(findings)}"
    )
    return Table(head, rows, note.strip())


def tail_table(evaluation: Evaluation, system: str, baseline: str, reference: str) -> Table | None:
    """Tail risk of the first system compared with its baseline, or with the dense outputs; None without either.

    system, baseline, reference: their names in the head.
    """
    run = evaluation.first
    if run.tail is None and run.agreement is None:
        return None
    rows, head = tail_rows(run.tail_or_agreement, reference), ["tail risk", system, baseline, reference]
    if run.tail is None:  # baseline and reference are the same outputs, so none can gain
        chrf = run.tail_or_agreement.chrf
        rows[:2] = [[f"outputs under {100 - chrf.threshold:.0f} chrF", f"{chrf.losing:.1%}", "", ""]]
        head, rows = head[:3], [row[:3] for row in rows]
    same = run.agreement.same_outputs if run.tail is None and run.agreement is not None else run.same_outputs
    where, reverse = f"the {baseline} output and the {reference}", "; gained: the reverse"
    if run.tail is None:
        where, reverse = f"the {baseline} output", ""
    note = (
        f"{same} of {evaluation.scored} outputs are identical to the {baseline} model's. Missing: share of those in "
        f"the source. Lost: in {where}, but not in the {system} output{reverse}. Names: capitalised words inside a "
        f"source sentence that the {reference} has too. Negations: texts with a negation word."
    )
    if len(evaluation.runs) > 1:
        note += f" First of {len(evaluation.runs)} seeds."
    return Table(head, rows, note).without_empty_columns()


def _counted(tail: Tail, part: str) -> Missing:
    found: Missing = getattr(tail, part)
    return found


def tail_rows(tail: Tail, reference: str = "human reference") -> list[list[str]]:
    """The figures of an evaluation's tail risk, each with the values of system, baseline and reference."""
    chrf, length, sides = tail.chrf, tail.length, ("system", "baseline", "reference")
    rows = [
        [f"outputs that {verb} more than {chrf.threshold:.0f} chrF", f"{share:.1%}", "", ""]
        for verb, share in (("lose", chrf.losing), ("gain", chrf.gaining))
    ]
    for name, label in TAIL.items():
        found = _counted(tail, name)
        if found.expected == 0:
            rows.append([f"missing {label}: the text has none", "", "", ""])
        elif found.missing:
            counts = f"of {found.expected:,}; {found.lost} lost, {found.gained} gained"
            rows.append([f"missing {label} ({counts})", *(_number(found.missing[side], ".1%") for side in sides)])
        else:
            rows.append([f"missing {label}: not counted, {found.why}", "", "", ""])
    for name, label, form in (
        ("ratio", f"output length / {reference} length", ".3f"),
        ("under_half", f"outputs under half the {reference}'s length", ".1%"),
        ("over_double", f"outputs over twice the {reference}'s length", ".1%"),
        ("empty", "empty outputs", "d"),
    ):
        rows.append([label, *(format(getattr(length[side], name), form) for side in sides[:2]), ""])
    return rows


def which_seed(findings: Findings) -> str:
    """A sentence for parts that show one run where scores are means over several."""
    return f"First of {findings.seeds} seeds." if findings.seeds > 1 else ""


def controls_table(findings: Findings) -> Table | None:
    """Scores with the wrong source; None if they were not measured."""
    if findings.evaluation is None or not (controls := findings.evaluation.first.system.controls):
        return None
    scores = {"right source": findings.evaluation.score, **controls}
    rows = [[name.replace("_", " "), f"{score.value:.2f}"] for name, score in scores.items()]
    return Table(["", findings.metric], rows, which_seed(findings))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
