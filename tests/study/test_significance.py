"""The bootstrap compared with corpora that are really resampled, with sacreBLEU's, and with known answers."""

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from l0drop.data import metrics
from l0drop.data.score import METRICS
from l0drop.study import significance
from l0drop.study.sentence_statistics import Statistics, statistics
from l0drop.study.significance import compare, compare_over_baselines, resampled, t_cdf, t_quantile, widening

TEXT = "the old well-known house, stands by a river and nobody ever saw 12 people in it; strange, isn't it"
WORDS = TEXT.split()


def corpus(sentences: int = 40, seed: int = 1) -> list[str]:
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(3, 14))) + "." for _ in range(sentences)]


def damaged(texts: list[str], rate: float, seed: int) -> list[str]:
    source = random.Random(seed)
    return [" ".join(source.choice(WORDS) if source.random() < rate else w for w in t.split()) for t in texts]


REFS = corpus()
GOOD, BAD = damaged(REFS, 0.1, 2), damaged(REFS, 0.35, 3)


def scored(metric: str, hyps: list[str], refs: list[str]) -> float:
    return getattr(metrics, metric)(hyps, refs).value


@pytest.mark.parametrize("metric", METRICS)
def test_statistics_sum_to_the_score(metric: str) -> None:
    hyps = [*GOOD[:-1], ""]
    expected = scored(metric, hyps, REFS)
    assert statistics(metric, hyps, REFS).score == (pytest.approx(expected) if metric == "rouge" else expected)


def test_statistics_support_the_tokenizers_of_bleu() -> None:
    hyps, refs = ["今天天气很好 a,b", "我们去公园"], ["今天天气很坏 a,b", "我们去商场"]
    values = {t: statistics("bleu", hyps, refs, t).score for t in ("13a", "zh", "none", "intl")}
    assert values == {t: metrics.bleu(hyps, refs, t).value for t in values}
    assert len(set(values.values())) > 1


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_resampled_corpora(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "_AT_ONCE", 3 * len(REFS))  # draws come in several parts
    found = resampled([statistics(metric, side, REFS) for side in (GOOD, BAD)], resamples=8, seed=5)
    drawn = np.random.default_rng(5).integers(0, len(REFS), (8, len(REFS)))
    for number, sentences in enumerate(drawn):
        for system, side in enumerate((GOOD, BAD)):
            expected = scored(metric, [side[i] for i in sentences], [REFS[i] for i in sentences])
            if metric == "rouge":
                assert found[system, number] == pytest.approx(expected, abs=1e-9)
            else:
                assert found[system, number] == expected


def test_documents_are_drawn_whole() -> None:
    documents = [0] * 3 + [1] * 10 + [2] * 1 + [3] * 26
    found = resampled([statistics("bleu", GOOD, REFS).by_document(documents)], resamples=10, seed=5)[0]
    drawn = np.random.default_rng(5).integers(0, 4, (10, 4))
    for number, chosen in enumerate(drawn):
        sentences = [i for document in chosen for i in range(len(REFS)) if documents[i] == document]
        expected = metrics.bleu([GOOD[i] for i in sentences], [REFS[i] for i in sentences]).value
        assert found[number] == expected


@pytest.mark.parametrize(("metric", "scorer"), [("bleu", BLEU), ("chrf", CHRF)])
def test_the_bootstrap_equals_sacrebleus(metric: str, scorer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    names = [("baseline", BAD), ("system", GOOD)]
    _, theirs = PairedTest(names, {"m": scorer()}, [REFS], test_type="bs", n_samples=400)()
    result = next(values[1] for name, values in theirs.items() if name != "System")
    same, baseline = resampled([statistics(metric, side, REFS) for side in (GOOD, BAD)], 400)
    # With its seed the draws are equal; sacreBLEU sums in float32.
    assert same.mean() == pytest.approx(result.mean, rel=1e-5)
    ordered = np.sort(same)
    assert (ordered[-11] - ordered[10]) / 2 == pytest.approx(result.ci, rel=1e-4)
    differences = np.abs(same - baseline)
    extreme = (differences - differences.mean() > abs(scored(metric, GOOD, REFS) - scored(metric, BAD, REFS))).sum()
    assert (extreme + 1) / 401 == pytest.approx(result.p_value, abs=1e-9)
    # With another seed the distribution is the same.
    other = resampled([statistics(metric, GOOD, REFS)], 400, seed=1)[0]
    assert other.mean() == pytest.approx(result.mean, abs=4 * other.std() / 20)
    assert other.std() == pytest.approx(same.std(), rel=0.15)


def by_mean(values: np.ndarray) -> Statistics:
    """A score that is the mean of sentence scores, whose distribution is known in closed form."""
    rows = np.stack([values, np.ones_like(values)], 1)
    return Statistics("rouge", rows, lambda sums: float(sums[0] / sums[1]))


def test_the_bounds_of_a_mean_are_those_of_the_textbook() -> None:
    differences = np.random.default_rng(3).normal(0.3, 2.0, 2000)
    found = compare(by_mean(differences), by_mean(np.zeros(2000)), margin=0.5)
    error = differences.std() / 2000**0.5
    assert found.difference == pytest.approx(differences.mean())
    assert found.lower == pytest.approx(differences.mean() - 1.645 * error, abs=0.1 * error)
    assert found.upper == pytest.approx(differences.mean() + 1.645 * error, abs=0.1 * error)
    assert found.interval[0] == pytest.approx(differences.mean() - 1.96 * error, abs=0.15 * error)
    assert found.interval[1] == pytest.approx(differences.mean() + 1.96 * error, abs=0.15 * error)


@pytest.mark.parametrize("metric", METRICS)
def test_identical_systems_are_non_inferior_and_a_clearly_worse_one_is_not(metric: str) -> None:
    good, bad = statistics(metric, GOOD, REFS), statistics(metric, BAD, REFS)
    same = compare(good, good, margin=0.01)
    assert same.non_inferior
    assert (same.difference, same.lower, same.interval) == (0, 0, (0, 0))
    worse = compare(bad, good, margin=0.5)
    assert not worse.non_inferior
    assert worse.lower < worse.difference < -0.5
    assert worse.p > 0.9
    better = compare(good, bad, margin=0.5)
    assert better.non_inferior
    assert better.lower > 0
    assert compare(bad, good, margin=100).non_inferior, "a margin that accepts everything"


def test_bound_and_p_always_agree() -> None:
    ours, theirs = (by_mean(np.random.default_rng(seed).normal(0, 1, 60)) for seed in (1, 2))
    verdicts = set()
    for resamples in (100, 1999, 2000):
        for margin in np.linspace(0.01, 1, 60):
            found = compare(ours, theirs, float(margin), resamples=resamples)
            assert found.non_inferior == (found.lower > -margin) == (found.p <= 0.05)
            verdicts.add(found.non_inferior)
    assert verdicts == {True, False}


def test_one_in_twenty_systems_that_are_worse_by_the_margin_passes() -> None:
    source = np.random.default_rng(0)
    passed = [
        compare(by_mean(source.normal(-0.5, 1, 100)), by_mean(np.zeros(100)), 0.5, resamples=300, seed=n).non_inferior
        for n in range(600)
    ]
    assert 0.025 < np.mean(passed) < 0.085


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_is_finite_and_above_zero(margin: float) -> None:
    with pytest.raises(ValueError, match="margin="):
        compare(by_mean(np.zeros(4)), by_mean(np.zeros(4)), margin=margin)


# --- over baselines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.95, 1, 6.314), (0.975, 1, 12.706), (0.95, 2, 2.920), (0.975, 2, 4.303), (0.95, 3, 2.353), (0.95, 4, 2.132),
        (0.975, 4, 2.776), (0.995, 5, 4.032), (0.975, 9, 2.262), (0.95, 30, 1.697), (0.95, 120, 1.658),
    ],
)  # fmt: skip
def test_t_quantiles_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=6e-4)
    assert t_quantile(1 - probability, freedom) == pytest.approx(-t_quantile(probability, freedom))


def test_t_cdf_agrees_with_draws_and_with_the_normal_distribution() -> None:
    draws = np.random.default_rng(1).standard_t(4, 400_000)
    for t in (-2.0, -0.3, 0.0, 0.7, 3.0):
        assert t_cdf(t, 4) == pytest.approx((draws <= t).mean(), abs=0.003)
    assert t_cdf(1.6449, 100_000) == pytest.approx(0.95, abs=1e-4)
    for probability, freedom in ((0.0, 3), (1.0, 3), (0.5, 0)):
        with pytest.raises(ValueError, match="t_quantile"):
            t_quantile(probability, freedom)


def noisy_pairs(
    source: np.random.Generator, effects: np.ndarray, text: float, interaction: float, texts: int = 100
) -> list[tuple[Statistics, Statistics]]:
    """Pairs with these differences; all share the texts' noise, and each has extra noise on every text."""
    shared = source.normal(0, text, texts)
    zeros = by_mean(np.zeros(texts))
    return [(by_mean(effect + shared + source.normal(0, interaction, texts)), zeros) for effect in effects]


def coverage(baselines: int, seeds: float, text: float, interaction: float, simulations: int) -> tuple[float, float]:
    """How often the lower bound is below, and the upper bound above, the true difference, which is 0.

    seeds, text, interaction: standard deviations; that of one text is 10 times as large as that of their mean.
    """
    source = np.random.default_rng([baselines, simulations])
    lower, upper = 0, 0
    for number in range(simulations):
        pairs = noisy_pairs(source, source.normal(0, seeds, baselines), 10 * text, 10 * interaction)
        found = compare_over_baselines(pairs, range(baselines), margin=1, resamples=300, seed=number)
        lower, upper = lower + (found.lower <= 0), upper + (found.upper >= 0)
    return lower / simulations, upper / simulations


NOISES = [(1.0, 0.1, 0.05), (0.1, 1.0, 0.05), (1.0, 0.6, 0.3)]
"""Dominated by seeds, dominated by texts, and both."""


@pytest.mark.parametrize("baselines", [3, 5])
@pytest.mark.parametrize("noise", NOISES[:2], ids=["seeds", "texts"])
def test_bounds_cover_the_truth(baselines: int, noise: tuple[float, float, float]) -> None:
    """A bootstrap over pairs would cover 0.84 to 0.89 where seeds dominate. The simulation's error is 0.007."""
    covered = coverage(baselines, *noise, simulations=1000)
    assert min(covered) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("baselines", [3, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_bounds_cover_the_truth_in_many_simulations(baselines: int, noise: tuple[float, float, float]) -> None:
    covered = coverage(baselines, *noise, simulations=5000)
    assert min(covered) > 0.94
    assert max(covered) < 0.99


def test_bounds_combine_the_spread_of_baselines_and_of_texts() -> None:
    source = np.random.default_rng(2)
    texts = source.normal(0, 3, 400)
    zeros = by_mean(np.zeros(400))

    def distances(effects: np.ndarray, noise: np.ndarray) -> np.ndarray:
        found = compare_over_baselines([(by_mean(noise + e), zeros) for e in effects], range(len(effects)), margin=1)
        return np.array([found.difference - found.lower, found.upper - found.difference])

    # Six baselines that agree: only the texts matter, as much as for one pair.
    of_texts = distances(np.zeros(6), texts)
    alone = compare(by_mean(texts), zeros, margin=1)
    apart = np.array([alone.difference - alone.lower, alone.upper - alone.difference])
    assert of_texts == pytest.approx(widening(400, 0.05) * apart)
    assert widening(400, 0.05) == pytest.approx(1, abs=0.005)
    assert widening(6, 0.05) == pytest.approx((6 / 5) ** 0.5 * 2.015 / 1.645, rel=1e-3)
    # Texts that agree: the t interval over baselines.
    effects = np.array([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0])
    of_baselines = distances(effects, np.zeros(400))
    assert of_baselines == pytest.approx(2.015 * effects.std(ddof=1) / 6**0.5, rel=1e-3)
    assert distances(effects, texts) == pytest.approx(np.hypot(of_texts, of_baselines), rel=1e-6)


def test_pairs_that_share_a_baseline_are_averaged() -> None:
    source = np.random.default_rng(3)
    pairs = noisy_pairs(source, np.array([0.5, 0.1, -0.4, -0.2]), 1.0, 0.5)
    found = compare_over_baselines(pairs, ["a", "a", "b", "a"], margin=0.9)
    each = [system.score - baseline.score for system, baseline in pairs]
    assert found.differences == pytest.approx(each)
    assert found.baseline_of == (0, 0, 1, 0)
    assert found.of_baselines == pytest.approx([np.mean([each[0], each[1], each[3]]), each[2]])
    assert found.difference == pytest.approx(np.mean(found.of_baselines))
    assert (found.baselines, found.seeds) == (2, 4)
    assert found.spread == pytest.approx(np.std(found.of_baselines, ddof=1))
    whole = [(by_mean(np.mean([pairs[i][0].rows[:, 0] for i in group], 0)), pairs[0][1]) for group in ((0, 1, 3), (2,))]
    averaged = compare_over_baselines(whole, ["a", "b"], margin=0.9)
    assert (found.lower, *found.interval) == pytest.approx((averaged.lower, *averaged.interval))


def test_no_verdict_with_fewer_than_three_baselines() -> None:
    pairs = noisy_pairs(np.random.default_rng(4), np.zeros(5), 0.1, 0.05)
    one = compare_over_baselines(pairs, ["a"] * 5, margin=5)
    assert (one.baselines, one.non_inferior, one.spread, one.few_seeds) == (1, None, None, True)
    alone = compare(by_mean(np.mean([system.rows[:, 0] for system, _ in pairs], 0)), pairs[0][1], margin=5)
    apart = widening(100, 0.05) * np.array([alone.lower - alone.difference, alone.upper - alone.difference])
    assert (one.lower, one.upper) == pytest.approx(one.difference + apart), "over texts only"
    two, three, five = (compare_over_baselines(pairs[:n], range(n), margin=5) for n in (2, 3, 5))
    assert [found.non_inferior for found in (two, three, five)] == [None, True, True]
    assert [found.few_seeds for found in (two, three, five)] == [True, True, False]


def test_one_good_run_among_bad_ones_is_not_enough() -> None:
    pairs = [
        (by_mean(np.random.default_rng(n).normal(e, 0.3, 500)), by_mean(np.zeros(500)))
        for n, e in enumerate([0.3, -1.6, -1.2, 0.1, -1.4])
    ]
    assert compare(*pairs[0], margin=0.5).non_inferior
    assert compare_over_baselines(pairs, range(5), margin=0.5).non_inferior is False
    assert compare_over_baselines([pairs[0]] * 5, range(5), margin=0.5).non_inferior is True


def test_senseless_comparisons_are_refused() -> None:
    one, other = statistics("bleu", GOOD, REFS), statistics("bleu", BAD[:-1], REFS[:-1])
    with pytest.raises(ValueError, match="margin=0"):
        compare(one, one, margin=0)
    with pytest.raises(ValueError, match="40 outputs but its baseline 39"):
        compare(one, other, margin=0.5)
    with pytest.raises(ValueError, match="nothing to resample"):
        compare(*[statistics("bleu", GOOD[:1], REFS[:1])] * 2, margin=0.5)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_over_baselines([], [], margin=0.5)
    with pytest.raises(ValueError, match="starts: 1 for 2 pairs"):
        compare_over_baselines([(one, one)] * 2, ["a"], margin=0.5)
