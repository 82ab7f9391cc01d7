"""The warning that a model hardly uses its source."""

from typing import Any

import pytest

from l0drop.data.score import Score
from l0drop.runs.analysis import AnalysedText, Analysis, SourceScore, SourceUse
from l0drop.runs.evaluation import EvaluatedRun, Evaluation, Judging, SystemRecord
from l0drop.study.source_need import warning_of_analysis, warning_of_evaluation


def score(value: float) -> Score:
    return Score("BLEU", value, "signature")


def analysed(source: SourceUse | None) -> Analysis:
    text = AnalysedText("test", [], "reference", 4, 40, 40, 0)
    return Analysis(models={}, fingerprints={}, text=text, decoding={}, dtype="float32", source=source)


def analysis(own: float | None, shuffled: float, empty: float, *entropies: float) -> Analysis:
    values = {"own_source": own, "shuffled_source": shuffled, "no_source": empty}
    scores = {
        name: SourceScore(None if value is None else score(value), entropy)
        for (name, value), entropy in zip(values.items(), entropies or (2.0, 5.0, 6.0), strict=True)
    }
    return analysed(SourceUse("", "", **scores))


def test_a_model_that_scores_as_well_with_wrong_sources_is_warned_about() -> None:
    found = warning_of_analysis(analysis(0.46, 0.40, 0.58))
    assert found is not None
    assert "hardly uses its source: it scores 0.46 BLEU with the right sources and 0.58 with an empty source" in found
    found = warning_of_analysis(analysis(20.0, 16.0, 1.0))
    assert found is not None
    assert "16.00 with shuffled sources" in found


def test_a_model_that_needs_its_source_is_not_warned_about() -> None:
    assert warning_of_analysis(analysis(30.0, 2.0, 0.5)) is None
    assert warning_of_analysis(analysis(20.0, 15.9, 0.5)) is None
    assert warning_of_analysis(analysed(None)) is None


def test_without_a_score_the_cross_entropy_decides() -> None:
    assert warning_of_analysis(analysis(None, 1.0, 1.0, 2.0, 2.2, 4.0)) is None
    found = warning_of_analysis(analysis(None, 1.0, 1.0, 2.0, 2.05, 4.0))
    assert found is not None
    assert "its cross-entropy is 2.000 with the right sources and 2.050 with shuffled sources" in found


@pytest.mark.parametrize(("shuffled", "warned"), [(2.0, False), (29.0, True)])
def test_the_controls_of_an_evaluation_are_judged_in_the_same_way(shuffled: float, warned: bool) -> None:
    def evaluation(controls: dict[str, Score]) -> Evaluation:
        system = SystemRecord("system", "outputs", [], {"bleu": score(30.0)}, controls=controls)
        runs = [EvaluatedRun("hypotheses.txt", system)]
        text: dict[str, Any] = {"inputs": [], "lines": 4, "scored": 4, "one_sided": 0, "documents": 1}
        return Evaluation(**text, judging=Judging(), generation={}, runs=runs)

    assert (warning_of_evaluation(evaluation({"shuffled_source": score(shuffled)})) is not None) == warned
    assert warning_of_evaluation(evaluation({})) is None
