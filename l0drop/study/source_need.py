"""Whether a model needs its source: its scores with wrong sources, judged in words.

If wrong sources score about as well, sparsity is free: any encoding can be dropped.
"""

from collections.abc import Mapping

from l0drop.data.score import Score
from l0drop.runs.analysis import Analysis, SourceScore, SourceUse, SweepAnalysis
from l0drop.runs.evaluation import Evaluation

QUESTION = "Does the task need the source?"
ABOUT_AS_WELL = 0.8
"""The share of its own score that a model reaches with a wrong source if it hardly uses the source."""
ABOUT_AS_LIKELY = 0.1
"""Without scores: the largest rise of the cross-entropy, in nats per token, of a model that hardly uses the source."""
NAMES = {"own_source": "own source", "shuffled_source": "shuffled sources", "no_source": "an empty source"}


def by_source(use: SourceUse) -> dict[str, SourceScore]:
    """The scores by the name of the source."""
    return {"own_source": use.own_source, "shuffled_source": use.shuffled_source, "no_source": use.no_source}


def warning_of_analysis(analysis: Analysis | SweepAnalysis) -> str | None:
    """A warning if the analysis of a run shows that the model hardly uses its source."""
    if isinstance(analysis, SweepAnalysis) or analysis.source is None:
        return None
    found = by_source(analysis.source)
    own = found.pop("own_source")
    if own.score is not None:
        return _by_score(own.score, {name: one.score for name, one in found.items() if one.score is not None})
    entropies = {name: one.cross_entropy for name, one in found.items()}
    best = min(entropies, key=lambda name: entropies[name])
    if entropies[best] > own.cross_entropy + ABOUT_AS_LIKELY:
        return None
    return _warning(
        f"its cross-entropy is {own.cross_entropy:.3f} with the right sources and {entropies[best]:.3f} with "
        f"{NAMES[best]}"
    )


def warning_of_evaluation(evaluation: Evaluation) -> str | None:
    """The same for an evaluation with controls; of its first system."""
    return _by_score(evaluation.score, evaluation.first.system.controls)


def _by_score(own: Score, others: Mapping[str, Score]) -> str | None:
    values = {name: score.value for name, score in others.items()}
    best = max(values, key=lambda name: values[name], default=None)
    if best is None or values[best] < ABOUT_AS_WELL * own.value:
        return None
    return _warning(
        f"it scores {own.value:.2f} {own.name} with the right sources and {values[best]:.2f} with {NAMES[best]}"
    )


def _warning(numbers: str) -> str:
    return (
        f"Warning: the model hardly uses its source: {numbers}. It can drop any part of the source at no cost, so its "
        "sparsity says nothing about which parts are needed."
    )
