"""The model of a sweep to look at in full: one choice for `l0drop analyze` and for the report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from l0drop.runs.evaluation import Compared, Evaluation, EvaluationFolder
from l0drop.runs.run import RunFolder
from l0drop.runs.sweep import Sweep, SweepFolder
from l0drop.study.agreement import comparable
from l0drop.study.verdict import verdict

MARGIN = 0.5
"""The margin if nothing was compared."""


class Candidate(Protocol):
    @property
    def sparsity(self) -> float | None: ...
    @property
    def compared(self) -> Compared | None: ...


One = TypeVar("One", bound=Candidate)


@dataclass(frozen=True)
class _Point:
    name: str
    sparsity: float | None
    compared: Compared | None


def shown_of(candidates: Sequence[One], margin: float) -> One | None:
    """The sparsest that is non-inferior, else the one nearest to it; the sparsest if none was compared."""
    judged = [(one, one.compared) for one in candidates if one.compared is not None]
    good = [one for one, compared in judged if verdict(compared, "", margin).kind == "non-inferior"]
    if judged and not good:
        return max(judged, key=lambda pair: pair[1].lower)[0]
    return max(good or candidates, key=lambda one: one.sparsity or 0.0, default=None)


def margin_of(evaluations: Iterable[Evaluation]) -> float:
    """The margin of the first evaluation that compares models; comparable evaluations have the same."""
    return next((one.judging.margin for one in evaluations if one.is_compared), MARGIN)


def evaluation_of(run: RunFolder) -> Evaluation | None:
    """The evaluation of a run; None if it has none."""
    file = EvaluationFolder(run.evaluation).metrics
    return Evaluation.read(file) if file.is_file() else None


def shown_point(folder: Path) -> str | None:
    """The run of a sweep that its report shows in full; None if no point has a usable comparison."""
    paths = SweepFolder(folder)
    sweep = Sweep.read(paths.summary)
    found = {point.run: evaluation_of(paths.run(point.run)) for point in sweep.points}
    against = folder / sweep.continued.run
    evaluations, _ = comparable(found, against, sweep.scores, paths.summary.name, None)
    known = {run: one for run, one in evaluations.items() if one is not None and one.is_compared}
    points = [_Point(run, one.mean_sparsity, one.difference) for run, one in known.items()]
    chosen = shown_of(points, margin_of(known.values()))
    return None if chosen is None else chosen.name
