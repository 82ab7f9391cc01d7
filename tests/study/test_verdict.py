"""Verdicts in words: three kinds, with the number of independent baselines behind them."""

from typing import Any

import numpy as np
import pytest

from l0drop.runs.evaluation import Difference, DifferenceOverBaselines
from l0drop.runs.json_file import from_json
from l0drop.study.significance import compare, compare_over_baselines
from l0drop.study.verdict import difference_in_words, verdict
from tests.study.test_significance import by_mean, noisy_pairs


def stored(baselines: int, **changes: Any) -> dict[str, Any]:
    """A comparison as files have it."""
    found = {
        "metric": "bleu", "differences": [], "non_inferior": None, "resamples": 2000, "seed": 1,
        "difference": -0.1, "lower": -0.3, "upper": 0.1, "interval": [-0.34, 0.14], "margin": 0.5, "seeds": 5,
        "baselines": baselines, "few_seeds": baselines < 5, "units": 1000, "unit": "sentence",
    }  # fmt: skip
    return found | changes


def over(baselines: int, **changes: Any) -> DifferenceOverBaselines:
    return from_json(DifferenceOverBaselines, stored(baselines, **changes))


def test_the_number_of_baselines_decides_whether_there_is_a_verdict() -> None:
    one, two, three, four, five = (verdict(over(count), "BLEU") for count in range(1, 6))
    assert one.sentence.startswith("no verdict: 1 independent baseline; three are needed. The mean difference is -0.10")
    assert "over 1,000 sentences, for these models only" in one.sentence
    assert two.label == "no verdict: 2 independent baselines; three are needed"
    assert (one.kind, two.kind) == ("no verdict", "no verdict")
    for found, count in ((three, 3), (four, 4)):
        assert found.label == "non-inferior at 0.5, preliminary"
        assert found.sentence.startswith(f"preliminary: non-inferior at 0.5 BLEU, over {count} independent baselines.")
    assert (five.label, five.preliminary) == ("non-inferior at 0.5", False)
    assert five.sentence == (
        "non-inferior at 0.5 BLEU, over 5 independent baselines. The mean difference is -0.10 BLEU; 95% bounds -0.30 "
        "and +0.10, over 5 baselines and 1,000 sentences."
    )


@pytest.mark.parametrize(
    ("lower", "upper", "kind", "label"),
    [
        (-0.49, 0.2, "non-inferior", "non-inferior at 0.5"),
        (-0.49, -0.127, "non-inferior", "non-inferior at 0.5, worse by at least 0.12"),
        (-0.5, 0.2, "not shown", "not shown"),
        (-0.9, 0.0, "not shown", "not shown"),
        (-0.9, -0.319, "worse", "worse by at least 0.31"),
        (-0.9, -0.004, "worse", "worse by at least 0.004"),
    ],
)
def test_three_kinds_of_verdict(lower: float, upper: float, kind: str, label: str) -> None:
    found = verdict(over(5, lower=lower, upper=upper), "BLEU")
    assert (found.kind, found.label) == (kind, label)
    assert "not shown to be" not in found.sentence
    wider = verdict(over(5, lower=lower, upper=upper), "BLEU", margin=1.0)
    assert wider.kind == "non-inferior"


@pytest.mark.parametrize(
    ("difference", "lower", "upper", "words"),
    [
        (-1.22, -1.7, -0.729, "1.22 BLEU lower (at least 0.72)"),
        (-0.3, -0.81, 0.2, "0.30 BLEU lower (the loss may be up to 0.81)"),
        (0.1, -0.61, 0.8, "0.10 BLEU higher (the loss may be up to 0.61)"),
    ],
)
def test_differences_in_words(difference: float, lower: float, upper: float, words: str) -> None:
    found = over(5, difference=difference, lower=lower, upper=upper)
    assert difference_in_words(found, "BLEU") == f"{words}, over 5 independent baselines"


def test_one_pair_speaks_for_itself_only() -> None:
    source = np.random.default_rng(1)
    found = compare(by_mean(source.normal(-3, 1, 200)), by_mean(np.zeros(200)), margin=0.5)
    shown = verdict(found, "chrF2")
    assert shown.kind == "worse"
    assert shown.sentence.startswith("worse by at least 2.")
    assert "chrF2, for this pair of models only. The difference is -" in shown.sentence
    assert "over 200 sentences, not over other training runs." in shown.sentence


def test_stored_comparisons_have_all_that_a_verdict_needs() -> None:
    pairs = noisy_pairs(np.random.default_rng(4), np.zeros(5), 0.1, 0.05)
    found = compare_over_baselines(pairs, range(5), margin=5, unit="document")
    assert verdict(found, "BLEU").sentence.startswith("non-inferior at 5 BLEU, over 5 independent baselines.")
    assert "100 documents" in verdict(found, "BLEU").sentence


def test_older_files_are_read() -> None:
    """They have neither upper bounds nor the number of baselines."""
    older = stored(4)
    del older["baselines"], older["upper"]

    def read(**changes: Any) -> DifferenceOverBaselines:
        return from_json(DifferenceOverBaselines, {**older, **changes})

    found = verdict(read(p=0.01, non_inferior=True), "BLEU")
    assert found.label == "non-inferior at 0.5, preliminary"
    assert "over 5 pairs (an older file: baselines that pairs share are not known)" in found.sentence
    assert verdict(read(lower=-0.9, interval=[-1.0, -0.2]), "BLEU").label == ("worse by at least 0.20, preliminary")
    pair = {key: value for key, value in older.items() if key not in ("seeds", "few_seeds")}
    pair |= {"p": 0.01, "non_inferior": True, "system": 29.9, "baseline": 30.0}
    assert "for this pair of models only" in verdict(from_json(Difference, pair), "BLEU").sentence
