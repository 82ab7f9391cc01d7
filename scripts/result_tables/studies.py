"""A published study: scores, sparsities and differences by system."""

import statistics
from collections.abc import Mapping
from typing import Any, Self

from l0drop.study.verdict import verdict
from result_tables.files import read
from result_tables.labels import CONTINUED, START

COUNTS = ("no", "one", "two", "three", "four", "five")


class Study:
    """found: a results.json as `l0drop.study.seeds.gather` makes it."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.systems: dict[str, Any] = found["systems"]

    @classmethod
    def read(cls, name: str) -> Self:
        return cls(read(name))

    @property
    def baselines(self) -> int:
        """The number of independent baselines: runs that all others start from."""
        return len(self.systems[START]["runs"]) if START in self.systems else 0

    def runs(self, system: str, seed: int | None = None) -> list[Mapping[str, Any]]:
        return [run for run in self.systems[system]["runs"] if seed is None or run["seed"] == seed]

    def scores(self, system: str, split: str = "test") -> dict[int, float]:
        """By seed."""
        return {run["seed"]: run[split]["score"]["value"] for run in self.runs(system)}

    def score(self, system: str, split: str = "test", seed: int | None = None) -> float:
        return statistics.mean(run[split]["score"]["value"] for run in self.runs(system, seed))

    def dropped(self, system: str, seed: int | None = None) -> float:
        return statistics.mean(run["test"].get("sparsity") or 0.0 for run in self.runs(system, seed))

    def differences(self, system: str, other: str, split: str = "test") -> list[float]:
        """Seed by seed, for the seeds that both have."""
        ours, theirs = self.scores(system, split), self.scores(other, split)
        return [score - theirs[seed] for seed, score in ours.items() if seed in theirs]

    def difference(self, system: str, other: str, split: str = "test") -> float:
        return statistics.mean(self.differences(system, other, split))

    def against(self, system: str, other: str = CONTINUED) -> Mapping[str, Any]:
        """The published comparison: over seeds, or of one seed over sentences."""
        entry = self.systems[system]
        found: Mapping[str, Any] = entry["against_on"] if "against_on" in entry else entry["one_seed"][other]
        return found

    def bound(self, system: str) -> str:
        """The one-sided bound on the test difference to the continued baseline, and the verdict.

        Older files do not have the number of baselines that their pairs share."""
        against = {"baselines": self.baselines, **self.against(system)}
        return f"{against['lower']:+.2f}, {verdict(against, 'BLEU').label}"


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
