"""Whether a system is as good as its baseline: paired bootstrap, by sentence or document, and over seeds.

Corpus scores are not means of sentence scores, so what is drawn are the statistics they are computed from: n-gram
counts per sentence for BLEU and chrF, F-measures for ROUGE. Those of a resampled corpus are sums of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from l0drop.data.metrics import BleuTokenizer, compound_split, rouge_of_texts

MetricName = Literal["bleu", "bleu_paper", "chrf", "rouge"]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
RESAMPLES = 2000
SEED = 12345
"""sacreBLEU's own, with which the draws are those of its paired bootstrap."""
LEVEL = 0.05
"""Of the one-sided test."""
_AT_ONCE = 1 << 20  # entries of the matrix of draws
_FEW_SEEDS = 5


@dataclass(frozen=True)
class Statistics:
    """What the score of a corpus is computed from: one row per sentence or document, and the score of summed rows."""

    metric: MetricName
    rows: np.ndarray
    score_of: Callable[[np.ndarray], float]

    @property
    def score(self) -> float:
        return self.score_of(self.rows.sum(0))

    def by_document(self, documents: Sequence[int]) -> "Statistics":
        """One row per document; `documents` numbers each sentence's from 0."""
        rows = np.zeros((max(documents) + 1, self.rows.shape[1]))
        np.add.at(rows, np.asarray(documents), self.rows)
        return Statistics(self.metric, rows, self.score_of)


def statistics(
    metric: MetricName, hyps: Sequence[str], refs: Sequence[str], tokenize: BleuTokenizer = "13a"
) -> Statistics:
    """Per sentence; summed over all of them, they give what the function of that name in `data.metrics` gives."""
    match metric:
        case "bleu":
            return _of_sacrebleu(metric, BLEU(tokenize=tokenize, force=True), hyps, refs)
        case "bleu_paper":
            scorer = BLEU(tokenize="none", smooth_method="none", force=True)
            return _of_sacrebleu(metric, scorer, *([compound_split(text) for text in side] for side in (hyps, refs)))
        case "chrf":
            return _of_sacrebleu(metric, CHRF(), hyps, refs)
        case "rouge":
            f = np.array(rouge_of_texts(hyps, refs)["rougeLsum"])
            return Statistics(metric, np.stack([f, np.ones_like(f)], 1), lambda sums: 100 * float(sums[0] / sums[1]))


def sentence_chrf(chrf: Statistics) -> np.ndarray:
    """The chrF of each sentence by itself."""
    return np.array([chrf.score_of(row) for row in chrf.rows])


def _of_sacrebleu(metric: MetricName, scorer: BLEU | CHRF, hyps: Sequence[str], refs: Sequence[str]) -> Statistics:
    # sacreBLEU's own bootstrap is built on these two methods; it offers no public ones.
    rows = np.array(scorer._extract_corpus_statistics(list(hyps), [list(refs)]), dtype=np.float64)
    return Statistics(metric, rows, lambda sums: float(scorer._compute_score_from_stats(sums.tolist()).score))


def resampled(systems: Sequence[Statistics], resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """Scores [systems, resamples] on corpora drawn with replacement, the same draws for all systems."""
    scores = np.empty((len(systems), resamples))
    start = 0
    for times_RU in _draws(len(systems[0].rows), resamples, seed):
        for number, system in enumerate(systems):
            sums = times_RU @ system.rows  # counts are whole numbers below 2^53, so their sums are exact in any order
            scores[number, start : start + len(sums)] = [system.score_of(row) for row in sums]
        start += len(times_RU)
    return scores


def _draws(units: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each unit is in each resample, [R, units], a part of the resamples at a time."""
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // units)
    for start in range(0, resamples, step):
        drawn = random.integers(0, units, (min(step, resamples - start), units))
        places = drawn + units * np.arange(len(drawn))[:, None]
        yield np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


@dataclass(frozen=True)
class Difference:
    """A system against its baseline, and what the bootstrap says about the difference.

    `lower` bounds the difference from below with one-sided 95% confidence. The system is non-inferior if that is
    above -margin; `p` is the probability of the resamples at or below -margin, and non-inferior is p ≤ 0.05.
    """

    metric: MetricName
    system: float
    baseline: float
    difference: float
    lower: float
    interval: tuple[float, float]
    """Two-sided, 95%."""
    margin: float
    p: float
    non_inferior: bool
    units: int
    unit: str
    resamples: int
    seed: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
    tested = _test(ours - theirs, margin)
    return Difference(
        system.metric, system.score, baseline.score, system.score - baseline.score, margin=margin,
        units=len(system.rows), unit=unit, resamples=resamples, seed=seed, **tested,
    )  # fmt: skip


@dataclass(frozen=True)
class DifferenceOverSeeds:
    """The mean difference of several runs to their own baselines, as `Difference` has it for one.

    It answers for other seeds and other sentences. Few seeds say little about other seeds: below five the bound is
    too hopeful, as a bootstrap of so few cannot show how far apart seeds are.
    """

    metric: MetricName
    differences: tuple[float, ...]
    """Of each pair of runs."""
    difference: float
    lower: float
    interval: tuple[float, float]
    margin: float
    p: float
    non_inferior: bool
    seeds: int
    few_seeds: bool
    units: int
    unit: str
    resamples: int
    seed: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_over_seeds(
    pairs: Sequence[tuple[Statistics, Statistics]],
    margin: float,
    *,
    unit: str = "sentence",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> DifferenceOverSeeds:
    """Hierarchical bootstrap: draw pairs of runs, and once for all of them the sentences.

    All runs are scored on the same sentences. Drawing sentences anew for each run would average their chance away.
    """
    if len(pairs) < 2:
        raise ValueError(f"pairs: {len(pairs)} of system and baseline; seeds are compared from two on")
    for system, baseline in pairs:
        _check(system, baseline, margin)
    scores = resampled([side for pair in pairs for side in pair], resamples, seed)
    differences_SR = scores[0::2] - scores[1::2]
    drawn_RS = np.random.default_rng([seed, len(pairs)]).integers(0, len(pairs), (resamples, len(pairs)))
    tested = _test(np.take_along_axis(differences_SR.T, drawn_RS, 1).mean(1), margin)
    observed = tuple(system.score - baseline.score for system, baseline in pairs)
    return DifferenceOverSeeds(
        pairs[0][0].metric, observed, float(np.mean(observed)), margin=margin, seeds=len(pairs),
        few_seeds=len(pairs) < _FEW_SEEDS, units=len(pairs[0][0].rows), unit=unit, resamples=resamples, seed=seed,
        **tested,
    )  # fmt: skip


def _test(differences: np.ndarray, margin: float) -> dict[str, Any]:
    """Bound, interval and verdict from the resampled differences; bound and p say the same by their definitions."""
    ordered, number = np.sort(differences), len(differences)

    def ends(level: float) -> tuple[float, float]:
        place = max(0, int(level * (number + 1)) - 1)
        return float(ordered[place]), float(ordered[-1 - place])

    p = (1 + int((differences <= -margin).sum())) / (number + 1)
    return {"lower": ends(LEVEL)[0], "interval": ends(LEVEL / 2), "p": p, "non_inferior": p <= LEVEL}


def check_margin(margin: float) -> None:
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin:g}: should be above 0 and finite, the loss that is small enough to accept")


def _check(system: Statistics, baseline: Statistics, margin: float) -> None:
    check_margin(margin)
    if len(system.rows) != len(baseline.rows):
        raise ValueError(f"the system has {len(system.rows)} outputs but its baseline {len(baseline.rows)}")
    if len(system.rows) < 2:
        raise ValueError("there is one sentence or document only, so there is nothing to draw from")
