"""Which evaluations one table may hold: those that are scored in the same way."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from l0drop.data.text import file_stamp
from l0drop.runs.evaluation import Evaluation, FileStamp, Side
from l0drop.runs.run import RunFolder, Scored

HUMAN = "human references"
Terms = dict[str, tuple[Any, str]]
"""The settings that all rows of a table share: the value of each, and the text that shows it."""


def comparable(
    found: Mapping[str, Evaluation | None],
    against: Path,
    trained: Mapping[str, Scored],
    file: str,
    margin: float | None,
) -> tuple[dict[str, Evaluation | None], list[str]]:
    """The evaluations by run that one table may hold, and notes on the others.

    Those compared with another run than `against` are not used.
    """
    used, notes = dict(found), []
    for name, evaluation in found.items():
        if evaluation is None or (baseline := evaluation.first.baseline) is None:
            continue
        if not any(_belongs(stamp, against) for stamp in baseline.files):
            used[name] = None
            notes.append(f"{name} was evaluated against {baseline.name}, not against {against.name}: not used.")
    evaluations, others = agreed(used, trained, against.name, file, margin)
    return evaluations, [*notes, *others]


def _belongs(file: FileStamp, run: Path) -> bool:
    """Whether a recorded file belongs to this run: by its content, or by its path if the run no longer has it."""
    path = Path(file.path)
    folder = RunFolder(run)
    kept = [copy for copy in (folder.model / path.name, folder.outputs / path.name) if copy.is_file()]
    if not kept:
        return run.name in path.parts
    return any(copy.stat().st_size == file.size and file_stamp(copy)["sha256"] == file.sha256 for copy in kept)


def agreed(
    found: Mapping[str, Evaluation | None],
    trained: Mapping[str, Scored],
    continued: str,
    file: str,
    margin: float | None,
) -> tuple[dict[str, Evaluation | None], list[str]]:
    """The evaluations by run; none of them if they are not all scored in the same way, with notes that say why.

    trained: scores on one text by run, from training, as stored in `file`; they fill the rows without an evaluation.
    """
    known = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
    compared = [name for name, evaluation in known.items() if evaluation.is_compared]
    notes = []
    if not compared or any(evaluation is None and name in trained for name, evaluation in found.items()):
        for name, evaluation in known.items():
            notes += _note(name, file, differences_to_training(evaluation, name, trained, continued))
    if known and not notes:
        first = [*compared, *known][0]
        for name, evaluation in known.items():
            differences = list(_differences(_terms(evaluation, margin), _terms(known[first], margin)))
            notes += _note(name, f"{first}/evaluation", differences)
    if not notes:
        return dict(found), []
    return dict.fromkeys(found), [
        *notes,
        f"Rows of one table must be scored in the same way, so all scores are taken from {file}.",
    ]


def differences_to_training(
    evaluation: Evaluation, name: str, trained: Mapping[str, Scored], continued: str
) -> list[str]:
    """How the scoring of an evaluation differs from the scoring in training.

    Whether both used the same text is known by a score that both have: that of the continued baseline, or of `name`
    itself if it was compared with nothing.
    """
    side: Side = "baseline" if evaluation.is_compared else "system"
    run = continued if side == "baseline" else name
    if run not in trained:
        return []
    there, score, seeds = trained[run], evaluation.score, len(evaluation.runs)
    its: Terms = {
        "metric": (score.name, score.name),
        "text": (evaluation.scored, evaluation.text),
        "references": (evaluation.references, evaluation.references or HUMAN),
        "seeds": (seeds, str(seeds)),
    }
    others: Terms = {
        "metric": (there.score.name, there.score.name),
        "text": (there.sentences, f"{there.sentences:,} lines, as in training"),
        "references": (there.references, there.references or HUMAN),
        "seeds": (1, "1"),
    }
    if differences := list(_differences(its, others)):
        return differences
    values = evaluation.mean_score(side), there.score.value
    its, others = (
        {"signature": (signature, signature), f"score of {run}": (value, f"{value:.6g}")}
        for signature, value in zip((score.signature, there.score.signature), values, strict=True)
    )
    return list(_differences(its, others))


def _terms(evaluation: Evaluation, margin: float | None) -> Terms:
    """margin: replaces the evaluation's margin if given."""
    judging, seeds = evaluation.judging, len(evaluation.runs)
    content = [{key: value for key, value in entry.items() if key != "path"} for entry in evaluation.inputs]
    decoding = evaluation.generation
    terms: Terms = {
        "metric": (judging.metric, evaluation.score.name),
        "tokenisation": (judging.tokenize, judging.tokenize),
        "text": ((content, evaluation.scored), evaluation.text),
        "decoding": (decoding, ", ".join(f"{key} {value}" for key, value in decoding.items()) or "model defaults"),
        "seeds": (seeds, str(seeds)),
    }
    if margin is None and evaluation.is_compared:
        terms["margin"] = (judging.margin, f"{judging.margin:g}")
    return terms


def _differences(its: Terms, others: Terms) -> Iterator[str]:
    for name in (name for name in its if name in others and its[name][0] != others[name][0]):
        shown, other = its[name][1], others[name][1]
        yield f"{name} {shown}, not {other}" if shown != other else f"{name} {shown}, with different content"


def _note(name: str, other: str, differences: list[str]) -> list[str]:
    return [f"{name}/evaluation differs from {other}: {'; '.join(differences)}."] if differences else []
