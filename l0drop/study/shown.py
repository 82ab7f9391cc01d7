"""The model of a sweep to look at in full: one choice for `l0drop analyze` and for the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from l0drop.data.text import read_json
from l0drop.study.agreement import Evaluation, comparable, difference_of, is_compared, mean_sparsity
from l0drop.study.sweep import SUMMARY, continued_in, finished_points
from l0drop.study.verdict import verdict

EVALUATION = Path("evaluation", "metrics.json")
MARGIN = 0.5
"""The margin if nothing was compared."""


class Candidate(Protocol):
    @property
    def sparsity(self) -> float | None: ...
    @property
    def compared(self) -> Mapping[str, Any] | None: ...


One = TypeVar("One", bound=Candidate)


@dataclass(frozen=True)
class _Point:
    name: str
    sparsity: float | None
    compared: Mapping[str, Any] | None


def shown_of(candidates: Sequence[One], margin: float) -> One | None:
    """The sparsest that is non-inferior, else the one nearest to it; the sparsest if none was compared."""
    judged = [(one, one.compared) for one in candidates if one.compared is not None]
    good = [one for one, compared in judged if verdict(compared, "", margin).kind == "non-inferior"]
    if judged and not good:
        return max(judged, key=lambda pair: float(pair[1]["lower"]))[0]
    return max(good or candidates, key=lambda one: one.sparsity or 0.0, default=None)


def margin_of(evaluations: Iterable[Evaluation]) -> float:
    """The margin of the first evaluation that compares models; comparable evaluations have the same."""
    return next((float(one["judging"]["margin"]) for one in evaluations if is_compared(one)), MARGIN)


def training_scores(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The scores in a `sweep.json` by run; on the test text if there is one."""
    continued = continued_in(summary)
    split = "test" if "test" in continued else "valid"
    return {one["run"]: one[split] for one in (summary["baseline"], continued, *summary["points"]) if split in one}


def shown_point(folder: Path) -> str | None:
    """The run of a sweep that its report shows in full; None if no point has a usable comparison."""
    files = {point["run"]: folder / point["run"] / EVALUATION for point in finished_points(folder / SUMMARY)}
    found = {run: read_json(file) if file.is_file() else None for run, file in files.items()}
    if not any(found.values()):
        return None
    summary = read_json(folder / SUMMARY)
    against = folder / continued_in(summary)["run"]
    evaluations, _ = comparable(found, against, training_scores(summary), SUMMARY, None)
    known = {run: one for run, one in evaluations.items() if one is not None and is_compared(one)}
    points = [_Point(run, mean_sparsity(one), difference_of(one)) for run, one in known.items()]
    chosen = shown_of(points, margin_of(known.values()))
    return None if chosen is None else chosen.name
