"""The summary of a report: the question, the verdict, the gain and its price, in three sentences."""

from l0drop.report.findings import Findings, Row
from l0drop.study.verdict import difference_in_words, none_as_good


def summary(findings: Findings) -> list[str]:
    """The verdict, the gain in speed and the tail risk, and what was scored."""
    return [_verdict(findings), _price(findings), _scored(findings)]


def _verdict(findings: Findings) -> str:
    if not findings.judged:
        return "No gated model has been compared with a dense model yet."
    best = findings.recommended
    if best is None and len(findings.points) > 1:
        return _none_as_good(findings, _nearest(findings))
    row = best or _nearest(findings)
    found = findings.verdict(row)
    assert found is not None
    dropped = "" if row.sparsity is None else f", {row.sparsity:.1%} dropped"
    sentence = f"{row.label}{dropped}, compared with {findings.compared_with}: {found.sentence}"
    return f"{sentence} This is the sparsest model that is non-inferior." if len(findings.points) > 1 else sentence


def _nearest(findings: Findings) -> Row:
    """The compared model whose bound is nearest to the margin."""
    return max(findings.judged, key=lambda row: row.lower or 0)


def _none_as_good(findings: Findings, closest: Row) -> str:
    found = findings.verdict(closest)
    assert found is not None
    assert closest.compared is not None
    none = none_as_good(findings.margin, findings.metric, str(findings.compared_with))
    name = closest.label if closest.sparsity is None else f"{closest.label} ({closest.sparsity:.1%} dropped)"
    if found.kind == "no verdict":
        return f"{none} Closest: {name}: {found.sentence}"
    preliminary = "; preliminary" if found.preliminary else ""
    return f"{none} Closest: {name}, {difference_in_words(closest.compared, findings.metric)}{preliminary}."


def _price(findings: Findings) -> str:
    row = findings.recommended or findings.shown
    speed = None if row is None else row.speed
    gain = "Its decoding speed was not measured"
    if speed is not None:
        share = 1 / speed.end_to_end
        gain = f"Decoding on the short memory takes {share:.0%} of the time on the dense memory ({speed.where})"
    if findings.tail is None:
        return f"{gain}."
    chrf = findings.tail.chrf
    first = "in the first pair of models, " if findings.seeds > 1 else ""
    return (
        f"{gain}; {first}{chrf.losing:.1%} of the outputs lose more than {chrf.threshold:.0f} chrF against the "
        f"dense model, and {chrf.gaining:.1%} gain as much."
    )


def _scored(findings: Findings) -> str:
    shares = sorted(row.sparsity for row in findings.points if row.sparsity is not None)
    if len(shares) > 1:
        return f"{len(shares)} models, {shares[0]:.0%} to {shares[-1]:.0%} dropped, were scored on {findings.text}."
    row = findings.shown
    if row is None or row.score is None:
        return f"{findings.name} has not been scored."
    drops = "" if row.sparsity is None else f"drops {row.sparsity:.1%} of its encodings and "
    over = f" (mean of {findings.seeds})" if findings.seeds > 1 else ""
    return f"{row.label} {drops}reaches {row.score:.2f} {findings.metric}{over} on {findings.text}."
