"""The summary of a report: the question, the verdict, the gain and its price, in three sentences."""

from l0drop.report.evaluation import FEW_SEEDS
from l0drop.report.findings import Findings, Row


def summary(findings: Findings) -> list[str]:
    """The verdict, the gain in speed and the tail risk, and what was scored."""
    return [_verdict(findings), _price(findings), _scored(findings)]


def _verdict(findings: Findings) -> str:
    if not findings.judged:
        return "No gated model has been compared with a dense model yet."
    many, best = len(findings.points) > 1, findings.recommended
    nearest = best or max(findings.judged, key=lambda row: row.lower or 0)
    to = f"non-inferior to {findings.compared_with} at a margin of {findings.margin:g} {findings.metric}"
    found = _difference(findings, nearest)
    if best is not None:
        drops = f"{best.name} drops {best.sparsity:.1%} of its encodings and is {to}"
        return f"{drops}: the difference is {found}.{' It is the sparsest such model.' if many else ''}"
    if many:
        return f"No model is shown to be {to}. The nearest is {nearest.label}: its difference is {found}."
    return f"{nearest.label} is not shown to be {to}: the difference is {found}."


def _difference(findings: Findings, row: Row) -> str:
    seeds = findings.over_seeds
    over = "" if seeds is None else f" over {seeds['seeds']} seeds"
    few = f" ({FEW_SEEDS})" if seeds is not None and seeds["few_seeds"] else ""
    return f"{row.difference:+.2f}{over}, with 95% confidence above {row.lower:+.2f}{few}"


def _price(findings: Findings) -> str:
    row = findings.recommended or findings.shown
    speed = None if row is None else row.speed
    gain = "Its decoding speed was not measured"
    if speed is not None:
        share = 1 / speed.end_to_end
        gain = f"Decoding on the short memory takes {share:.0%} of the time on the dense memory ({speed.where})"
    if findings.tail is None:
        return f"{gain}."
    chrf = findings.tail["chrf"]
    first = "in the first seed, " if findings.seeds > 1 else ""
    return (
        f"{gain}; {first}{chrf['losing']:.1%} of the sentences lose more than {chrf['threshold']:.0f} chrF against the "
        f"dense model, and {chrf['gaining']:.1%} gain as much."
    )


def _scored(findings: Findings) -> str:
    shares = sorted(row.sparsity for row in findings.points if row.sparsity is not None)
    if len(shares) > 1:
        return f"{len(shares)} models, {shares[0]:.0%} to {shares[-1]:.0%} dropped, were scored on {findings.text}."
    row = findings.shown
    if row is None or row.score is None:
        return f"{findings.name} has not been scored."
    drops = "" if row.sparsity is None else f"drops {row.sparsity:.1%} of its encodings and "
    over = f" over {findings.seeds} seeds" if findings.seeds > 1 else ""
    return f"{row.label} {drops}reaches {row.score:.2f} {findings.metric}{over} on {findings.text}."
