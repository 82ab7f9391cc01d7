"""A published study: scores, sparsities and differences by system."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from l0drop.runs.evaluation import Compared, DifferenceOverBaselines
from l0drop.runs.run import Split
from l0drop.runs.study import SeedRun, StudyResults
from l0drop.study.verdict import verdict
from result_tables import files
from result_tables.labels import CONTINUED, START

COUNTS = ("no", "one", "two", "three", "four", "five")


class PublishedStudy:
    """The results that `l0drop.study.seeds.gather` makes."""

    def __init__(self, found: StudyResults) -> None:
        self.systems = found.systems

    @classmethod
    def read(cls, name: str) -> Self:
        return cls(files.study(name))

    @property
    def baselines(self) -> int:
        """The number of independent baselines: runs that all others start from."""
        return len(self.systems[START].runs) if START in self.systems else 0

    def runs(self, system: str, seed: int | None = None) -> list[SeedRun]:
        return [run for run in self.systems[system].runs if seed is None or run.seed == seed]

    def scores(self, system: str, split: Split = "test") -> dict[int, float]:
        """By seed."""
        return {run.seed: run.value(split) for run in self.runs(system)}

    def score(self, system: str, split: Split = "test", seed: int | None = None) -> float:
        return statistics.mean(run.value(split) for run in self.runs(system, seed))

    def dropped(self, system: str, seed: int | None = None) -> float:
        return statistics.mean(run.sparsity or 0.0 for run in self.runs(system, seed))

    def differences(self, system: str, other: str, split: Split = "test") -> list[float]:
        """Seed by seed, for the seeds that both have."""
        ours, theirs = self.scores(system, split), self.scores(other, split)
        return [score - theirs[seed] for seed, score in ours.items() if seed in theirs]

    def is_trained_like(self, system: str, other: str) -> bool:
        """Whether both were fine-tuned for as many steps; runs from scratch may be compared with any."""
        sides = [self.systems[name] for name in (system, other)]
        tuned = all((side.recipe.get("model") or {}).get("init") for side in sides)
        seeds = {run.seed: run.steps for run in sides[1].runs}
        return not tuned or all(run.steps == seeds.get(run.seed, run.steps) for run in sides[0].runs)

    def difference(self, system: str, other: str, split: Split = "test") -> float:
        return statistics.mean(self.differences(system, other, split))

    def against(self, system: str, other: str = CONTINUED) -> Compared:
        """The published comparison: over seeds, or of one seed over sentences."""
        entry = self.systems[system]
        return entry.one_seed[other] if entry.against_on is None else entry.against_on

    def bound(self, system: str) -> str:
        """The one-sided bound on the test difference to the continued baseline, and the verdict.

        Older files do not have the number of baselines that their pairs share."""
        against = self.against(system)
        if isinstance(against, DifferenceOverBaselines) and against.baselines is None:
            against = replace(against, baselines=self.baselines)
        return f"{against.lower:+.2f}, {verdict(against, 'BLEU').label}"


def distilled(recipe: Mapping[str, Any]) -> str:
    """How a run was distilled: no, token, sequence or both."""
    token = bool(recipe["train"].get("teacher"))
    sequence = str(recipe["data"]["train"].get("target", "")).endswith(".translated")
    return {(False, False): "no", (True, False): "token", (False, True): "sequence", (True, True): "both"}[
        token, sequence
    ]


def count(number: int, noun: str) -> str:
    word = COUNTS[number] if number < len(COUNTS) else str(number)
    return f"{word} {noun}{'' if number == 1 else 's'}"
