"""The parts of analyses that figures read: the points of a curve, and the text measured on."""

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
    """The points with a learned gate that have this part, by sparsity.

    Each rule drops different tokens, so rules form no curve; they are returned only if there are no learned gates.
    """
    points = sorted((p for p in analysis["points"] if part in p), key=lambda point: point["sparsity"])
    return [point for point in points if point["kind"] in LEARNED] or points


def why_omitted(analysis: Mapping[str, Any], part: str) -> str:
    reasons = {point.get("left_out", {}).get(part, "it was not requested") for point in analysis["points"]}
    return "; ".join(sorted(reasons))
