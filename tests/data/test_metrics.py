import json
import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from l0drop.data.metrics import Score, bleu, bleu_paper, chrf, rouge
from l0drop.data.sparsity import SparsityMeter

Metric = Callable[[list[str], list[str]], Score]

HYPS = ["The cat sat on the mat .", "There is a well-known, red house in the old town."]
REFS = ["The cat lay on the mat .", "There is a well-known red house in the old town."]


def bleu_from_definition(hyps: list[list[str]], refs: list[list[str]]) -> float:
    """Unsmoothed BLEU as defined by Papineni et al. 2002."""
    log_precision = 0.0
    for n in range(1, 5):
        hit = total = 0
        for hyp, ref in zip(hyps, refs, strict=True):
            grams = [[tuple(side[i : i + n]) for i in range(len(side) - n + 1)] for side in (hyp, ref)]
            hit += sum(min(grams[0].count(gram), grams[1].count(gram)) for gram in set(grams[0]))
            total += len(grams[0])
        log_precision += math.log(hit / total) / 4
    hyp_length, ref_length = (sum(map(len, side)) for side in (hyps, refs))
    return 100 * min(1.0, math.exp(1 - ref_length / hyp_length)) * math.exp(log_precision)


def test_bleu_of_tokenized_text_matches_its_definition() -> None:
    expected = bleu_from_definition([hyp.split() for hyp in HYPS], [ref.split() for ref in REFS])
    score = bleu(HYPS, REFS, tokenize="none")
    assert score.value == pytest.approx(expected)
    assert "tok:none" in score.signature


def test_bleu_separates_punctuation() -> None:
    tokens = [text.replace(",", " ,").replace("town.", "town .").split() for text in HYPS]
    refs = [text.replace("town.", "town .").split() for text in REFS]
    assert bleu(HYPS, REFS).value == pytest.approx(bleu_from_definition(tokens, refs))


def test_bleu_options_work_and_are_in_the_signature() -> None:
    upper = [hyp.upper() for hyp in HYPS]
    assert bleu(upper, HYPS).value < 20
    lowered = bleu(upper, HYPS, lowercase=True)
    assert lowered.value == pytest.approx(100)
    assert "case:lc" in lowered.signature
    hyp, ref = "今天天气很好我们去公园", "今天天气很好我们去商场"
    assert bleu([hyp], [ref], tokenize="zh").value == pytest.approx(bleu_from_definition([list(hyp)], [list(ref)]))
    quotes = ["„schön“"], ["„ schön “"]
    assert bleu(*quotes, tokenize="intl").details["precision1"] == pytest.approx(100)
    assert bleu(*quotes, tokenize="13a").details["precision1"] < 1
    with pytest.raises(ValueError, match="`tokenize`: 'moses' is not one of"):
        bleu(HYPS, REFS, tokenize="moses")  # type: ignore[arg-type]


def test_bleu_paper_splits_compounds_after_13a() -> None:
    split = "well ##AT##-##AT## known"
    hyps = [HYPS[0].split(), f"There is a {split} , red house in the old town .".split()]
    refs = [REFS[0].split(), f"There is a {split} red house in the old town .".split()]
    score = bleu_paper(HYPS, REFS)
    assert score.value == pytest.approx(bleu_from_definition(hyps, refs))
    assert score.value != pytest.approx(bleu(HYPS, REFS).value, abs=0.1)
    assert "tok:13a+compound-split" in score.signature
    assert bleu_paper(["a b c x"], ["a b c d"]).value == 0  # no 4-gram and no smoothing, as in multi-bleu.perl


def test_chrf_matches_its_definition() -> None:
    # "abc" against "abd": of 1-grams 2 of 3 match, of 2-grams 1 of 2, of 3-grams 0 of 1; precision equals recall.
    assert chrf(["abc"], ["abd"]).value == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    assert chrf(HYPS, HYPS).value == pytest.approx(100)
    assert "nc:6" in chrf(HYPS, REFS).signature


def test_rouge_values_match_manual_computation() -> None:
    score = rouge(["the cat sat"], ["the cat ran away"])
    # Unigrams 2 of 3 and 2 of 4, bigrams 1 of 2 and 1 of 3, longest common subsequence 2.
    assert score.details["rouge1"] == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert score.details["rouge2"] == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert score.value == score.details["rougeLsum"] == pytest.approx(score.details["rouge1"])
    assert rouge(["two cats running"], ["two cat runs"]).details["rouge1"] == pytest.approx(100)  # stems
    assert rouge(["x", "a b"], ["y", "a b"]).details["rouge1"] == pytest.approx(50)  # mean over texts


def test_rouge_lsum_finds_sentences_by_line_or_punctuation() -> None:
    ordered, swapped = "The cat sat. A dog ran!", 'A dog ran! "The cat sat." '
    assert rouge([ordered], [swapped]).value == pytest.approx(100)
    assert rouge([ordered.replace(". ", ".\n")], [swapped]).value == pytest.approx(100)
    assert rouge(["the cat sat a dog ran"], ["a dog ran the cat sat"]).value < 60
    assert "sent:lines-or-.!?" in rouge([ordered], [swapped]).signature


@pytest.mark.parametrize("metric", [bleu, bleu_paper, chrf, rouge])
def test_unequal_and_empty_corpora_are_refused(metric: Metric) -> None:
    with pytest.raises(ValueError, match="2 hypotheses but 1 references"):
        metric(HYPS, REFS[:1])
    with pytest.raises(ValueError, match="nothing to score"):
        metric([], [])


@pytest.mark.parametrize("metric", [bleu, bleu_paper, chrf, rouge])
def test_scores_are_json_with_their_signature(metric: Metric) -> None:
    score = metric(HYPS, REFS)
    stored = json.loads(json.dumps(asdict(score)))
    assert stored["value"] == score.value
    assert stored["signature"] == score.signature
    assert stored["signature"].startswith("nrefs:1|")
    assert stored["details"] == score.details


GATES = np.array([[0.0, 1.0, 0.4, 0.0], [0.0, 0.7, 0.0, 1.0]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
OPEN = np.array([[0.1, 0.9, 0.6, 9.0], [0.2, 0.7, 9.0, 9.0]])


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
def test_meter_counts_real_tokens_only(convert: Callable[[np.ndarray], np.ndarray | torch.Tensor]) -> None:
    meter = SparsityMeter()
    meter.add(convert(GATES), convert(MASK), convert(OPEN))
    assert meter.tokens == 5
    assert meter.sparsity == meter.exactly_zero == pytest.approx(2 / 5)
    assert meter.exactly_one == pytest.approx(1 / 5)
    assert meter.between == pytest.approx(2 / 5)
    assert meter.expected_open_rate == pytest.approx((0.1 + 0.9 + 0.6 + 0.2 + 0.7) / 5)


def test_meter_weights_tokens_equally_not_batches() -> None:
    meter = SparsityMeter()
    meter.add(np.zeros((1, 1)), np.ones((1, 1)))
    meter.add(np.ones((1, 9)), np.ones((1, 9)))
    assert meter.sparsity == pytest.approx(0.1)
    assert meter.expected_open_rate is None


@settings(max_examples=50, deadline=None)
@given(
    values=arrays(np.float32, (4, 7), elements=st.sampled_from([0.0, 0.25, 1.0])),
    mask=arrays(np.bool_, (4, 7)),
)
def test_meter_is_the_same_for_a_corpus_in_one_or_many_batches(values: np.ndarray, mask: np.ndarray) -> None:
    mask[0, 0] = True
    whole, rows = SparsityMeter(), SparsityMeter()
    whole.add(values, mask, values)
    for row, real in zip(values, mask, strict=True):
        rows.add(torch.from_numpy(row)[None], torch.from_numpy(real)[None], torch.from_numpy(row)[None])
    assert whole == rows
    assert whole.sparsity == pytest.approx(np.mean(values[mask] == 0))
    assert whole.exactly_zero + whole.exactly_one + whole.between == pytest.approx(1)


def test_meter_distinguishes_almost_closed_from_closed() -> None:
    meter = SparsityMeter()
    meter.add(np.array([1e-30, 1 - 1e-12, 0.0, 1.0]), np.ones(4))
    assert (meter.exactly_zero, meter.between, meter.exactly_one) == (0.25, 0.5, 0.25)


def test_meter_refuses_invalid_input() -> None:
    meter = SparsityMeter()
    with pytest.raises(ValueError, match="no real token"):
        _ = meter.sparsity
    with pytest.raises(ValueError, match="differ in shape"):
        meter.add(GATES, MASK[:1])
    with pytest.raises(ValueError, match="open_probability"):
        meter.add(GATES, MASK, OPEN[:, :2])
    for bad in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="outside"):
            meter.add(np.array([bad]), np.ones(1))
    meter.add(np.array([0.5, float("nan")]), np.array([1, 0]), np.array([0.5, float("nan")]))
    assert meter.expected_open_rate == 0.5
    meter.add(np.array([0.5]), np.ones(1))
    with pytest.raises(ValueError, match="some batches only"):
        _ = meter.expected_open_rate
