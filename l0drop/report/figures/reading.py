"""The parts of analyses that figures read: the points of a curve, and the text measured on."""

from l0drop.runs.analysis import Analysis, PointAnalysis, SweepAnalysis


def measured_on(analysis: Analysis | SweepAnalysis) -> str:
    text, named, sparsity = analysis.text, "", ""
    if isinstance(analysis, Analysis):
        named = "; ".join(f"{role}: {name}" for role, name in analysis.models.items())
        sparsity = "" if analysis.sparsity is None else f", sparsity {analysis.sparsity:.1%}"
    return (
        f"Measured on {text.name}, {text.sentences:,} sentences, {text.source_tokens:,} source and "
        f"{text.target_tokens:,} target tokens, target: {text.target}{sparsity}" + (f" ({named})." if named else ".")
    )


def along(analysis: SweepAnalysis, part: str) -> list[PointAnalysis]:
    """The points with a learned gate that have this part, by sparsity.

    Each rule drops different tokens, so rules form no curve; they are returned only if there are no learned gates.
    """
    having = (point for point in analysis.points if getattr(point, part) is not None)
    points = sorted(having, key=lambda point: point.sparsity or 0.0)
    return [point for point in points if point.is_learned] or points


def why_omitted(analysis: SweepAnalysis, part: str) -> str:
    reasons = {point.left_out.get(part, "it was not requested") for point in analysis.points}
    return "; ".join(sorted(reasons))
