"""Which evaluations may stand in one table: those whose rows are scored alike."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, Literal

Evaluation = dict[str, Any]
Side = Literal["system", "baseline"]
Terms = dict[str, tuple[Any, str]]
"""What rows of one table share: its value, and how it is shown."""


def agreed(
    found: Mapping[str, Evaluation | None],
    trained: Mapping[str, dict[str, Any]],
    reference: str,
    file: str,
    margin: float | None,
) -> tuple[dict[str, Evaluation | None], list[str]]:
    """The evaluations that were found, by run; none of them where their rows are not scored alike, with notes why.

    trained: scores on one text by run, as `file` has them from training; they fill the rows that no evaluation fills.
    """
    known = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
    compared = [name for name, evaluation in known.items() if is_compared(evaluation)]
    notes = []
    if not compared or any(evaluation is None and name in trained for name, evaluation in found.items()):
        for name, evaluation in known.items():
            notes += _note(name, file, differences_to_training(evaluation, name, trained, reference))
    if known and not notes:
        first = [*compared, *known][0]
        for name, evaluation in known.items():
            differences = list(_differences(_terms(evaluation, margin), _terms(known[first], margin)))
            notes += _note(name, f"{first}/evaluation", differences)
    if not notes:
        return dict(found), []
    return dict.fromkeys(found), [*notes, f"Rows of one table are scored alike, so all scores are those of {file}."]


def differences_to_training(
    evaluation: Evaluation, name: str, trained: Mapping[str, dict[str, Any]], reference: str
) -> list[str]:
    """In what an evaluation is not scored as in training; the same text is known by the score that both have of a run.

    That run is the reference, or `name` itself where it was compared with none.
    """
    side: Side = "baseline" if is_compared(evaluation) else "system"
    run = reference if side == "baseline" else name
    if run not in trained:
        return []
    there, score, seeds = trained[run], main_score(evaluation), len(evaluation["runs"])
    its: Terms = {
        "metric": (score["name"], score["name"]),
        "text": (evaluation["scored"], scored_text(evaluation)),
        "references": (None, "the text's own"),
        "seeds": (seeds, str(seeds)),
    }
    others: Terms = {
        "metric": (there["score"]["name"], there["score"]["name"]),
        "text": (there["sentences"], f"{there['sentences']:,} sentences, those of training"),
        "references": (there.get("references"), there.get("references", "the text's own")),
        "seeds": (1, "1"),
    }
    if differences := list(_differences(its, others)):
        return differences
    values = mean_score(evaluation, side), there["score"]["value"]
    its, others = (
        {"signature": (signature, signature), f"score of {run}": (value, f"{value:.6g}")}
        for signature, value in zip((score["signature"], there["score"]["signature"]), values, strict=True)
    )
    return list(_differences(its, others))


def is_compared(evaluation: Evaluation) -> bool:
    """With a baseline."""
    return "tail" in evaluation["runs"][0]


def main_score(evaluation: Evaluation) -> dict[str, Any]:
    """Of the first run, by the metric of the verdict."""
    score: dict[str, Any] = evaluation["runs"][0]["system"]["scores"][evaluation["judging"]["metric"]]
    return score


def mean_score(evaluation: Evaluation, side: Side) -> float:
    """Over all seeds, by the metric of the verdict."""
    metric = evaluation["judging"]["metric"]
    return fmean(run[side]["scores"][metric]["value"] for run in evaluation["runs"])


def scored_text(evaluation: Evaluation) -> str:
    paths = [str(entry["path"]) for entry in evaluation["inputs"] if "path" in entry]
    return f"{evaluation['scored']:,} sentences of {paths[0] if paths else 'the test text'}"


def _terms(evaluation: Evaluation, margin: float | None) -> Terms:
    """`margin`: where it is given, the evaluation's is not used."""
    judging, seeds = evaluation["judging"], len(evaluation["runs"])
    content = [{key: value for key, value in entry.items() if key != "path"} for entry in evaluation["inputs"]]
    decoding = evaluation["generation"]
    terms = {
        "metric": (judging["metric"], main_score(evaluation)["name"]),
        "tokenisation": (judging["tokenize"], judging["tokenize"]),
        "text": ((content, evaluation["scored"]), scored_text(evaluation)),
        "decoding": (decoding, ", ".join(f"{key} {value}" for key, value in decoding.items()) or "the models' own"),
        "seeds": (seeds, str(seeds)),
    }
    if margin is None and is_compared(evaluation):
        terms["margin"] = (judging["margin"], f"{judging['margin']:g}")
    return terms


def _differences(its: Terms, others: Terms) -> Iterator[str]:
    for name in (name for name in its if name in others and its[name][0] != others[name][0]):
        shown, other = its[name][1], others[name][1]
        yield f"{name} {shown}, not {other}" if shown != other else f"{name} {shown}, with other content"


def _note(name: str, other: str, differences: list[str]) -> list[str]:
    return [f"{name}/evaluation differs from {other}: {'; '.join(differences)}."] if differences else []
