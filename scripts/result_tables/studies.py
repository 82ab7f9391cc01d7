"""A published study: scores, sparsities and differences by system."""

import statistics
from collections.abc import Mapping
from typing import Any, Self

from result_tables.files import read
from result_tables.labels import CONTINUED, START

NO_VERDICT, PRELIMINARY = 3, 5
"""With fewer independent baselines than the first there is no verdict; with fewer than the second it is preliminary."""
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


def distilled(recipe: Mapping[str, Any]) -> str:
    """How a run was distilled: no, token, sequence or both."""
    token = bool(recipe["train"].get("teacher"))
    sequence = str(recipe["data"]["train"].get("target", "")).endswith(".translated")
    return {(False, False): "no", (True, False): "token", (False, True): "sequence", (True, True): "both"}[
        token, sequence
    ]


def verdict(against: Mapping[str, Any], baselines: int) -> str:
    """What a comparison shows at its margin. The unit is the independent baseline."""
    if baselines < NO_VERDICT:
        return f"no verdict ({count(baselines, 'baseline')})"
    preliminary = "preliminary: " if baselines < PRELIMINARY else ""
    if against["non_inferior"]:
        return f"{preliminary}non-inferior"
    worse = against["interval"][1] < -against["margin"]
    return preliminary + (f"worse by more than {against['margin']:g}" if worse else "not shown")


def count(number: int, noun: str) -> str:
    word = COUNTS[number] if number < len(COUNTS) else str(number)
    return f"{word} {noun}{'' if number == 1 else 's'}"
