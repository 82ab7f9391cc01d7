"""The tables of a report that come from scores and evaluations."""

from typing import Any

from l0drop.report.findings import Findings
from l0drop.report.table import Table

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


def differences_table(evaluation: dict[str, Any]) -> Table:
    """All metrics of one model and of the dense model that it is compared with."""
    run = evaluation["runs"][0]
    cells = [
        [
            run["system"]["scores"][metric]["name"],
            f"{found['system']:.2f}",
            f"{found['baseline']:.2f}",
            f"{found['difference']:+.2f}",
            f"{found['interval'][0]:+.2f} to {found['interval'][1]:+.2f}",
            f"{found['lower']:+.2f}",
        ]
        for metric, found in run["differences"].items()
    ]
    head = ["", "gated", "dense", "difference", "95% interval", "95% bound"]
    return Table(head, cells, _differences_note(evaluation))


def _differences_note(evaluation: dict[str, Any]) -> str:
    metric = evaluation["judging"]["metric"]
    first = evaluation["runs"][0]["differences"][metric]
    note = f"Paired bootstrap over {first['units']:,} {first['unit']}s, {first['resamples']:,} resamples."
    if "over_seeds" not in evaluation:
        return note
    found = evaluation["over_seeds"][metric]
    each = ", ".join(f"{difference:+.2f}" for difference in found["differences"])
    return f"{note} These are the scores of the first of {found['seeds']} pairs; the differences of all are {each}."


def tail_overview(findings: Findings) -> Table | None:
    """Tail risk of every model that was compared with a dense one; None if there is none."""
    rows, threshold = [], 0.0
    for row in findings.points:
        tail = findings.evaluations.get(row.name, {"runs": [{}]})["runs"][0].get("tail")
        if tail is None:
            continue
        threshold = tail["chrf"]["threshold"]
        lost = [f"{tail[part]['lost']} of {tail[part]['expected']:,}" if "lost" in tail[part] else "" for part in TAIL]
        shares = [f"{tail['chrf'][side]:.1%}" for side in ("losing", "gaining")]
        rows.append([row.label, *shares, *lost])
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


def tail_table(findings: Findings) -> Table | None:
    """Tail risk of the model shown, in full; None if it was not compared."""
    if findings.tail is None:
        return None
    note = (
        "Missing: share of those in the source. Lost: in the dense output and the human reference, but not in the "
        "gated output; gained: the reverse. Names: capitalised words inside a source sentence that the human "
        f"reference has too. Negations: sentences with a negation word. {which_seed(findings)}"
    )
    reference = "human reference"
    if findings.evaluation is not None and "references" in findings.evaluation:
        reference = "dense, start"
        note = note.replace("human reference", f"output of {reference}")
    return Table(["", "gated", "dense", reference], tail_rows(findings.tail, reference), note.strip())


def tail_rows(tail: dict[str, Any], reference: str = "human reference") -> list[list[str]]:
    """The figures of an evaluation's tail risk, each with the values of system, baseline and reference."""
    chrf, length, sides = tail["chrf"], tail["length"], ("system", "baseline", "reference")
    rows = [
        [f"sentences that {verb} more than {chrf['threshold']:.0f} chrF", f"{chrf[share]:.1%}", "", ""]
        for verb, share in (("lose", "losing"), ("gain", "gaining"))
    ]
    for name, label in TAIL.items():
        found = tail[name]
        if found.get("expected") == 0:
            rows.append([f"missing {label}: the text has none", "", "", ""])
        elif "missing" in found:
            counts = f"of {found['expected']:,}; {found['lost']} lost, {found['gained']} gained"
            rows.append([f"missing {label} ({counts})", *(_number(found["missing"][side], ".1%") for side in sides)])
        else:
            rows.append([f"missing {label}: not counted, {found['why']}", "", "", ""])
    for name, label, form in (
        ("ratio", f"output length / {reference} length", ".3f"),
        ("under_half", f"outputs under half the {reference}'s length", ".1%"),
        ("over_double", f"outputs over twice the {reference}'s length", ".1%"),
        ("empty", "empty outputs", "d"),
    ):
        rows.append([label, *(format(length[side][name], form) for side in sides[:2]), ""])
    return rows


def which_seed(findings: Findings) -> str:
    """A sentence for parts that show one run where scores are means over several."""
    return f"First of {findings.seeds} seeds." if findings.seeds > 1 else ""


def controls_table(findings: Findings) -> Table | None:
    """Scores with the wrong source; None if they were not measured."""
    if findings.evaluation is None or "controls" not in findings.evaluation["runs"][0]["system"]:
        return None
    system = findings.evaluation["runs"][0]["system"]
    scores = {"right source": system["scores"][findings.evaluation["judging"]["metric"]], **system["controls"]}
    rows = [[name.replace("_", " "), f"{score['value']:.2f}"] for name, score in scores.items()]
    return Table(["", findings.metric], rows, which_seed(findings))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
