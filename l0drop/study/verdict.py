"""What a comparison shows, in words: the verdict on stored differences, those of older files included.

non-inferior at M       the lower bound is above -M; if the upper bound is below zero, the loss is stated too
worse by at least X     the upper bound is X below zero, and the lower bound is not above -M
not shown               neither
no verdict              fewer than three independent baselines

A comparison of one pair of models speaks for this pair only. With three or four baselines a verdict is preliminary.
Each bound is one-sided and holds with 95% confidence.
"""

import math
from dataclasses import dataclass
from typing import Literal

from l0drop.runs.evaluation import Compared, DifferenceOverBaselines
from l0drop.study.significance import ENOUGH_BASELINES, FEWEST_BASELINES

Kind = Literal["non-inferior", "worse", "not shown", "no verdict"]
_WORDS = {3: "three", 5: "five"}


@dataclass(frozen=True)
class Verdict:
    """kind: for decisions. label: for table cells. sentence: with the numbers behind it."""

    kind: Kind
    label: str
    sentence: str
    preliminary: bool = False


def verdict(found: Compared, metric: str, margin: float | None = None) -> Verdict:
    """The verdict on an entry of `differences` or `over_seeds` in an evaluation, or of `against_on` in a study.

    metric: the name of the score. margin: replaces the stored one.
    """
    margin = found.margin if margin is None else margin
    count = _baselines(found)
    numbers = _numbers(found, metric)
    if count is not None and count < FEWEST_BASELINES:
        plural = "" if count == 1 else "s"
        label = f"no verdict: {count} independent baseline{plural}; {_WORDS[FEWEST_BASELINES]} are needed"
        return Verdict("no verdict", label, f"{label}. {numbers}")
    kind, label = judged(found.lower, found.upper, margin)
    over = _over(found, count)
    few = isinstance(found, DifferenceOverBaselines) and found.few_seeds
    preliminary = few or (count is not None and count < ENOUGH_BASELINES)
    shown = {"not shown": f"not shown: the loss may exceed {margin:g} {metric}"}.get(kind, f"{label} {metric}")
    start = "preliminary: " if preliminary else ""
    end = ", preliminary" if preliminary else ""
    return Verdict(kind, label + end, f"{start}{shown}, {over}. {numbers}", preliminary)


def none_as_good(margin: float, metric: str, dense: str) -> str:
    """The sentence for several models, none of which is non-inferior."""
    return f"No model is shown to be as good as {dense} within {margin:g} {metric}."


def difference_in_words(found: Compared, metric: str) -> str:
    """The difference, its 95% bound and what it covers: "1.22 BLEU lower (at least 0.72), for this pair ..."."""
    size = f"{abs(found.difference):.2f} {metric} {'lower' if found.difference < 0 else 'higher'}"
    bound = f"at least {_at_least(-found.upper)}" if found.upper < 0 else f"the loss may be up to {-found.lower:.2f}"
    return f"{size} ({bound}), {_over(found, _baselines(found))}"


def judged(lower: float, upper: float, margin: float) -> tuple[Kind, str]:
    """The kind of a verdict and its label, from the bounds of a difference in a score where more is better."""
    worse = f"worse by at least {_at_least(-upper)}" if upper < 0 else ""
    if lower > -margin:
        return "non-inferior", f"non-inferior at {margin:g}" + (f", {worse}" if worse else "")
    return ("worse", worse) if worse else ("not shown", "not shown")


def _at_least(loss: float) -> str:
    """Two decimals, rounded down; more where that would be zero."""
    if loss >= 0.01:
        return f"{math.floor(loss * 100) / 100:.2f}"
    return f"{loss:.1g}"


def _baselines(found: Compared) -> int | None:
    """How many independent baselines; None for one pair of models and for older files, which do not say."""
    return found.baselines if isinstance(found, DifferenceOverBaselines) else None


def _over(found: Compared, count: int | None) -> str:
    if not isinstance(found, DifferenceOverBaselines):
        return "for this pair of models only"
    if count is None:
        return f"over {found.seeds} pairs (an older file: baselines that pairs share are not known)"
    return f"over {count} independent baselines"


def _numbers(found: Compared, metric: str) -> str:
    over_baselines = isinstance(found, DifferenceOverBaselines)
    texts = f"{found.units:,} {found.unit}s"
    mean = "The mean difference" if over_baselines else "The difference"
    count = _baselines(found)
    if not over_baselines:
        covers = f"over {texts}, not over other training runs"
    elif count == 1:
        covers = f"over {texts}, for these models only"
    elif count is None:
        covers = f"over pairs and {texts}"
    else:
        covers = f"over {count} baselines and {texts}"
    bounds = f"95% bounds {found.lower:+.2f} and {found.upper:+.2f}"
    return f"{mean} is {found.difference:+.2f} {metric}; {bounds}, {covers}."
