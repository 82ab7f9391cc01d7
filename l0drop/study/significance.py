"""Intervals for the difference between a system and its baseline.

`compare` takes one pair of models and resamples the text: it speaks for this pair only. `compare_over_baselines` takes
pairs that start from several independently trained baselines: it speaks for other baselines too.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from l0drop.runs.evaluation import RESAMPLES, SEED, Difference, DifferenceOverBaselines, check_margin
from l0drop.study.sentence_statistics import Statistics

LEVEL = 0.05
"""Of one-sided bounds; intervals are two-sided and have the same level."""
FEWEST_BASELINES, ENOUGH_BASELINES = 3, 5
"""With fewer baselines than the first number there is no verdict; with fewer than the second it is preliminary."""
_AT_ONCE = 1 << 20  # entries of the matrix of draws


class Resampled(Protocol):
    """Counts per text, and the function that scores their sum."""

    @property
    def rows(self) -> np.ndarray: ...

    @property
    def score_of(self) -> Callable[[np.ndarray], float]: ...


def compare(
    system: Statistics,
    baseline: Statistics,
    margin: float,
    *,
    unit: str = "sentence",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Difference:
    """Paired bootstrap: both systems on the same resampled corpora (Koehn, 2004)."""
    _check(system, baseline, margin)
    ours, theirs = resampled([system, baseline], resamples, seed)
    differences = ours - theirs
    # A p-value from counts, so that p ≤ 0.05 and lower > -margin always agree.
    p = (1 + int((differences <= -margin).sum())) / (resamples + 1)
    lower, upper = quantiles(differences, LEVEL)
    return Difference(
        system.metric, system.score, baseline.score, system.score - baseline.score, lower=lower, upper=upper,
        interval=quantiles(differences, LEVEL / 2), margin=margin, p=p, non_inferior=p <= LEVEL,
        units=len(system.rows), unit=unit, resamples=resamples, seed=seed,
    )  # fmt: skip


def compare_over_baselines(
    pairs: Sequence[tuple[Statistics, Statistics]],
    starts: Sequence[Hashable],
    margin: float,
    *,
    unit: str = "sentence",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> DifferenceOverBaselines:
    """The mean difference over independent baselines; `starts` names the baseline that each pair starts from.

    The unit is the baseline: pairs that share one are not independent, so they are averaged first. With d_j the mean
    difference of baseline j, J baselines, and d their mean, two errors matter. Baselines differ: d moves with the
    sample of baselines, with standard error s/√J, s being the standard deviation of the d_j. Texts differ: all
    baselines are scored on the same texts, so this error does not shrink with J; it is the bootstrap distribution of d
    with one draw of texts for all. Each has its own confidence limit for d, t·s/√J with Student's t for J - 1 degrees
    of freedom, and w·(d - q) with the bootstrap quantile q; w, see `widening`, is above 1 for few texts. The distances
    are combined in quadrature:

        d - lower = √((t·s/√J)² + w²·(d - q)²)

    If texts do not matter this is the t interval over baselines; if baselines agree it is the bootstrap over texts. In
    between it covers a little more than 95%. The t quantile of the summed variances would hold too, but with three
    baselines it would be 1.8 times as wide as needed where texts dominate. One part is counted twice, which is
    conservative: how much a baseline gains on particular texts is both in s and in the bootstrap.
    """
    if len(pairs) != len(starts):
        raise ValueError(f"starts: {len(starts)} for {len(pairs)} pairs; each pair needs one")
    if not pairs:
        raise ValueError("pairs: there is nothing to compare")
    for system, baseline in pairs:
        _check(system, baseline, margin)
    names = list(dict.fromkeys(starts))
    baseline_of = [names.index(start) for start in starts]
    observed_S = np.array([system.score - baseline.score for system, baseline in pairs])
    scores = resampled([side for pair in pairs for side in pair], resamples, seed)
    observed_J = _means(observed_S[:, None], baseline_of)[:, 0]
    drawn_R = _means(scores[0::2] - scores[1::2], baseline_of).mean(0)
    count, difference = len(names), float(observed_J.mean())
    spread = float(observed_J.std(ddof=1)) if count > 1 else None

    def limits(level: float) -> tuple[float, float]:
        over_baselines = 0.0 if spread is None else t_quantile(1 - level, count - 1) * spread / math.sqrt(count)
        low, high = quantiles(drawn_R, level)
        wider = widening(len(pairs[0][0].rows), level)
        return (
            difference - math.hypot(over_baselines, wider * max(0.0, difference - low)),
            difference + math.hypot(over_baselines, wider * max(0.0, high - difference)),
        )

    lower, upper = limits(LEVEL)
    return DifferenceOverBaselines(
        metric=pairs[0][0].metric,
        differences=tuple(observed_S.tolist()),
        baseline_of=tuple(baseline_of),
        of_baselines=tuple(observed_J.tolist()),
        difference=difference,
        lower=lower,
        upper=upper,
        interval=limits(LEVEL / 2),
        margin=margin,
        non_inferior=None if count < FEWEST_BASELINES else lower > -margin,
        baselines=count,
        seeds=len(pairs),
        few_seeds=count < ENOUGH_BASELINES,
        spread=spread,
        units=len(pairs[0][0].rows),
        unit=unit,
        resamples=resamples,
        seed=seed,
    )


def _means(values_SR: np.ndarray, baseline_of: Sequence[int]) -> np.ndarray:
    """[J, R], the means of the pairs of each baseline."""
    groups = np.asarray(baseline_of)
    return np.stack([values_SR[groups == number].mean(0) for number in range(groups.max() + 1)])


def resampled(
    systems: Sequence[Resampled],
    resamples: int = RESAMPLES,
    seed: int = SEED,
    strata: Sequence[Hashable] | None = None,
) -> np.ndarray:
    """Scores [systems, resamples] on corpora drawn with replacement, the same draws for all systems.

    strata: a label for each text; texts are then drawn within their label, each as many as there are.
    """
    scores = np.empty((len(systems), resamples))
    start = 0
    for times_RU in _draws(_indices(len(systems[0].rows), strata), resamples, seed):
        for number, system in enumerate(systems):
            sums = times_RU @ system.rows  # counts are whole numbers below 2^53, so their sums are exact in any order
            scores[number, start : start + len(sums)] = [system.score_of(row) for row in sums]
        start += len(times_RU)
    return scores


def _indices(units: int, strata: Sequence[Hashable] | None) -> list[np.ndarray]:
    """The units of each stratum. Strata of one unit are drawn together: alone, they would not vary at all."""
    if strata is None:
        return [np.arange(units)]
    sizes = Counter(strata)
    groups: dict[Hashable, list[int]] = {}
    for index, label in enumerate(strata):
        groups.setdefault((label,) if sizes[label] > 1 else None, []).append(index)
    return [np.array(group) for group in groups.values()]


def _draws(strata: Sequence[np.ndarray], resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each unit is in each resample, [R, units], a part of the resamples at a time."""
    random = np.random.default_rng(seed)
    units = sum(len(indices) for indices in strata)
    step = max(1, _AT_ONCE // units)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        times = np.zeros((count, units))
        for indices in strata:
            drawn = random.integers(0, len(indices), (count, len(indices)))
            cells = drawn + len(indices) * np.arange(count)[:, None]
            times[:, indices] = np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape)
        yield times


def quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    """The values that a share `level` of the resamples lies at or below, and at or above."""
    ordered = np.sort(values)
    index = max(0, int(level * (len(values) + 1)) - 1)
    return float(ordered[index]), float(ordered[-1 - index])


def widening(texts: int, level: float) -> float:
    """How much too narrow a percentile bootstrap over so few texts is: √(n/(n-1)) · t / z (Hesterberg, 2015)."""
    return math.sqrt(texts / (texts - 1)) * t_quantile(1 - level, texts - 1) / NormalDist().inv_cdf(1 - level)


@lru_cache
def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t with a whole number of degrees of freedom, by bisection of its closed-form CDF."""
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"t_quantile({probability}, {freedom}): needs 0 < probability < 1 and freedom ≥ 1")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def t_cdf(t: float, freedom: int) -> float:
    """P(T ≤ t) for a whole number of degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    within = 2 / math.pi * (angle + sin * total) if odd else sin * total
    return 0.5 + within / 2


def _check(system: Statistics, baseline: Statistics, margin: float) -> None:
    check_margin(margin)
    if len(system.rows) != len(baseline.rows):
        raise ValueError(f"the system has {len(system.rows)} outputs but its baseline {len(baseline.rows)}")
    if len(system.rows) < 2:
        raise ValueError("there is only one sentence or document, so there is nothing to resample")
