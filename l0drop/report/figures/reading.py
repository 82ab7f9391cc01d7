"""What figures read of analyses: which points make a curve, and what was measured on what."""

from collections.abc import Mapping
from typing import Any

from l0drop.study.sweep import LEARNED


def measured_on(analysis: Mapping[str, Any]) -> str:
    text = analysis["text"]
    models = analysis.get("models", {})
    named = "; ".join(f"{role}: {name}" for role, name in models.items())
    sparsity = f", sparsity {analysis['sparsity']:.1%}" if "sparsity" in analysis else ""
    return (
        f"Measured on {text['name']}, {text['sentences']:,} sentences, {text['source_tokens']:,} source and "
        f"{text['target_tokens']:,} target tokens, target: {text['target']}{sparsity}"
        + (f" ({named})." if named else ".")
    )


def along(analysis: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The points of a sweep that have this part, by sparsity: of learned gates, which differ in it alone. Rules drop
    each something else, and are no curve; they are drawn where there is nothing but rules."""
    points = sorted((p for p in analysis["points"] if part in p), key=lambda point: point["sparsity"])
    return [point for point in points if point["kind"] in LEARNED] or points


def why_left_out(analysis: Mapping[str, Any], part: str) -> str:
    reasons = {point.get("left_out", {}).get(part, "it was not asked for") for point in analysis["points"]}
    return "; ".join(sorted(reasons))
