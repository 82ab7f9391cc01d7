"""The bootstrap against corpora resampled for real, against sacreBLEU's own, and on cases whose answer is known."""

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from l0drop.data import metrics
from l0drop.study import significance
from l0drop.study.significance import METRICS, Statistics, compare, compare_over_seeds, resampled, statistics

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


def test_statistics_know_the_tokenizers_of_bleu() -> None:
    hyps, refs = ["今天天气很好 a,b", "我们去公园"], ["今天天气很坏 a,b", "我们去商场"]
    values = {t: statistics("bleu", hyps, refs, t).score for t in ("13a", "zh", "none", "intl")}
    assert values == {t: metrics.bleu(hyps, refs, t).value for t in values}
    assert len(set(values.values())) > 1


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_resampled_corpora(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "_AT_ONCE", 3 * len(REFS))  # so that draws come in parts
    found = resampled([statistics(metric, side, REFS) for side in (GOOD, BAD)], resamples=8, seed=5)
    drawn = np.random.default_rng(5).integers(0, len(REFS), (8, len(REFS)))
    for number, places in enumerate(drawn):
        for system, side in enumerate((GOOD, BAD)):
            expected = scored(metric, [side[i] for i in places], [REFS[i] for i in places])
            if metric == "rouge":
                assert found[system, number] == pytest.approx(expected, abs=1e-9)
            else:
                assert found[system, number] == expected


def test_documents_are_drawn_whole() -> None:
    documents = [0] * 3 + [1] * 10 + [2] * 1 + [3] * 26
    found = resampled([statistics("bleu", GOOD, REFS).by_document(documents)], resamples=10, seed=5)[0]
    drawn = np.random.default_rng(5).integers(0, 4, (10, 4))
    for number, chosen in enumerate(drawn):
        places = [i for document in chosen for i in range(len(REFS)) if documents[i] == document]
        expected = metrics.bleu([GOOD[i] for i in places], [REFS[i] for i in places]).value
        assert found[number] == expected


@pytest.mark.parametrize(("metric", "scorer"), [("bleu", BLEU), ("chrf", CHRF)])
def test_it_is_sacrebleu_s_paired_bootstrap(metric: str, scorer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    names = [("baseline", BAD), ("system", GOOD)]
    _, theirs = PairedTest(names, {"m": scorer()}, [REFS], test_type="bs", n_samples=400)()
    result = next(values[1] for name, values in theirs.items() if name != "System")
    same, baseline = resampled([statistics(metric, side, REFS) for side in (GOOD, BAD)], 400)
    # With its seed we draw what it draws; it sums in float32.
    assert same.mean() == pytest.approx(result.mean, rel=1e-5)
    ordered = np.sort(same)
    assert (ordered[-11] - ordered[10]) / 2 == pytest.approx(result.ci, rel=1e-4)
    differences = np.abs(same - baseline)
    extreme = (differences - differences.mean() > abs(scored(metric, GOOD, REFS) - scored(metric, BAD, REFS))).sum()
    assert (extreme + 1) / 401 == pytest.approx(result.p_value, abs=1e-9)
    # With another seed it is the same distribution.
    other = resampled([statistics(metric, GOOD, REFS)], 400, seed=1)[0]
    assert other.mean() == pytest.approx(result.mean, abs=4 * other.std() / 20)
    assert other.std() == pytest.approx(same.std(), rel=0.15)


def by_mean(values: np.ndarray) -> Statistics:
    """Of a score that is the mean of sentence scores, for which everything is known in closed form."""
    rows = np.stack([values, np.ones_like(values)], 1)
    return Statistics("rouge", rows, lambda sums: float(sums[0] / sums[1]))


def test_the_bound_of_a_mean_is_the_textbook_s() -> None:
    differences = np.random.default_rng(3).normal(0.3, 2.0, 2000)
    found = compare(by_mean(differences), by_mean(np.zeros(2000)), margin=0.5)
    error = differences.std() / 2000**0.5
    assert found.difference == pytest.approx(differences.mean())
    assert found.lower == pytest.approx(differences.mean() - 1.645 * error, abs=0.1 * error)
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


def test_bound_and_p_never_contradict_each_other() -> None:
    ours, theirs = (by_mean(np.random.default_rng(seed).normal(0, 1, 60)) for seed in (1, 2))
    verdicts = set()
    for resamples in (100, 1999, 2000):
        for margin in np.linspace(0.01, 1, 60):
            found = compare(ours, theirs, float(margin), resamples=resamples)
            assert found.non_inferior == (found.lower > -margin) == (found.p <= 0.05)
            verdicts.add(found.non_inferior)
    assert verdicts == {True, False}


def test_the_test_errs_as_often_as_it_says() -> None:
    """Of systems worse by exactly the margin, one in twenty passes."""
    source = np.random.default_rng(0)
    passed = [
        compare(by_mean(source.normal(-0.5, 1, 100)), by_mean(np.zeros(100)), 0.5, resamples=300, seed=n).non_inferior
        for n in range(600)
    ]
    assert 0.025 < np.mean(passed) < 0.085


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_is_a_loss_that_can_be_exceeded(margin: float) -> None:
    with pytest.raises(ValueError, match="margin="):
        compare(by_mean(np.zeros(4)), by_mean(np.zeros(4)), margin=margin)


def test_over_seeds_draws_runs_and_for_all_of_them_the_same_sentences() -> None:
    source = np.random.default_rng(1)
    pairs = [(source.normal(s, 1, 30), source.normal(0, 1, 30)) for s in (0.0, 0.2, -0.4)]
    found = compare_over_seeds([(by_mean(a), by_mean(b)) for a, b in pairs], margin=0.9, resamples=500, seed=4)
    sentences = np.random.default_rng(4).integers(0, 30, (500, 30))
    runs = np.random.default_rng([4, 3]).integers(0, 3, (500, 3))
    slow = []
    for places, chosen in zip(sentences, runs, strict=True):
        slow.append(np.mean([np.mean([pairs[run][0][i] - pairs[run][1][i] for i in places]) for run in chosen]))
    assert found.lower == pytest.approx(sorted(slow)[24])
    assert found.p == (1 + sum(d <= -0.9 for d in slow)) / 501
    assert found.difference == pytest.approx(np.mean(found.differences))
    assert found.differences == pytest.approx([a.mean() - b.mean() for a, b in pairs])
    assert found.few_seeds


def test_over_seeds_counts_the_chance_of_seeds_and_of_sentences() -> None:
    source = np.random.default_rng(2)
    sentence = source.normal(0, 3, 400)
    zeros = by_mean(np.zeros(400))

    def spread(effects: np.ndarray, noise: np.ndarray) -> float:
        found = compare_over_seeds([(by_mean(noise + e), zeros) for e in effects], margin=1)
        return (found.interval[1] - found.interval[0]) / (2 * 1.96)

    # Six runs that agree: all that is left is the chance of the sentences, as large as for one run.
    assert spread(np.zeros(6), sentence) == pytest.approx(sentence.std() / 20, rel=0.1)
    # Runs that differ add theirs.
    effects = np.array([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0])
    assert spread(effects, np.zeros(400)) == pytest.approx(effects.std() / 6**0.5, rel=0.1)
    assert spread(effects, sentence) == pytest.approx(np.hypot(sentence.std() / 20, effects.std() / 6**0.5), rel=0.1)


def test_over_seeds_is_not_sure_where_one_seed_is() -> None:
    """One good run among bad ones is non-inferior by itself; the seeds together are not."""
    effects = [0.3, -1.6, -1.2, 0.1, -1.4]
    pairs = [
        (by_mean(np.random.default_rng(n).normal(e, 0.3, 500)), by_mean(np.zeros(500))) for n, e in enumerate(effects)
    ]
    assert compare(*pairs[0], margin=0.5).non_inferior
    assert not compare_over_seeds(pairs, margin=0.5).non_inferior
    assert compare_over_seeds([pairs[0]] * 5, margin=0.5).non_inferior


def test_what_makes_no_sense_is_refused() -> None:
    one, other = statistics("bleu", GOOD, REFS), statistics("bleu", BAD[:-1], REFS[:-1])
    with pytest.raises(ValueError, match="margin=0"):
        compare(one, one, margin=0)
    with pytest.raises(ValueError, match="40 outputs but its baseline 39"):
        compare(one, other, margin=0.5)
    with pytest.raises(ValueError, match="nothing to draw from"):
        compare(*[statistics("bleu", GOOD[:1], REFS[:1])] * 2, margin=0.5)
    with pytest.raises(ValueError, match="from two on"):
        compare_over_seeds([(one, one)], margin=0.5)
