"""The folder of a sweep: its paths, and its files.

runs/NAME-sweep/  recipe.yaml  baseline/ (if it is trained here)  continued/  lambda-0.1/ ...  sweep.json  timings.json

Older sweeps call the continued baseline `reference`, as folder and as key; they are read and resumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from l0drop.data.whole import locked
from l0drop.runs.json_file import (
    VERSION,
    FieldError,
    FileError,
    JsonFile,
    Settings,
    flat,
    from_json,
    optional,
    read_as,
    remedy,
    write_json,
)
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import CalibrationRecord, RunFolder, RunMetrics, Scored, Split

BASELINE, CONTINUED = "baseline", "continued"
EARLIER_CONTINUED = "reference"
LEARNED = ("lambda", "target")
"""Kinds of points with a learned gate; the others are rules."""


@dataclass(frozen=True)
class SweepFolder:
    """The paths of a sweep."""

    path: Path

    @property
    def summary(self) -> Path:
        return self.path / "sweep.json"

    @property
    def timings(self) -> Path:
        return self.path / "timings.json"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis.json"

    @property
    def continued(self) -> RunFolder:
        """The continued baseline; older sweeps have another name for it."""
        older = (self.path / EARLIER_CONTINUED).is_dir() and not (self.path / CONTINUED).is_dir()
        return self.run(EARLIER_CONTINUED if older else CONTINUED)

    @property
    def is_sweep(self) -> bool:
        return self.summary.is_file()

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.path / name)


@dataclass(frozen=True)
class Machine:
    """Where a run was trained."""

    commit: str | None = None
    device: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Rates:
    """Sparsity and expected open rate on the test text, else on the validation text."""

    sparsity: float
    expected_open_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a run as a sweep repeats them; only its name if the run was not scored here."""

    run: str
    rates: Rates | None = flat()
    valid: Scored | None = optional()
    test: Scored | None = optional()
    calibration: CalibrationRecord | None = optional()
    lambda_: float | None = optional("lambda")
    steps: int | None = optional()
    checkpoints: list[str] | None = optional()
    seed: int | None = optional()
    dtype: str | None = optional()
    decoding: Settings | None = optional()
    trained_on: Machine | None = flat()

    @property
    def sparsity(self) -> float | None:
        return None if self.rates is None else self.rates.sparsity

    def scored(self, split: Split) -> Scored | None:
        return self.test if split == "test" else self.valid

    @classmethod
    def copied(cls, run: str, metrics: RunMetrics) -> dict[str, Any]:
        """The fields that an outcome copies from a run's `metrics.json`."""
        last, made_by = metrics.last, metrics.made_by
        gates = None if last is None else last.gates
        return {
            "run": run,
            "rates": None if gates is None else Rates(gates.sparsity, gates.expected_open_rate),
            "valid": metrics.valid,
            "test": metrics.test,
            "calibration": metrics.calibration,
            "lambda_": metrics.lambda_,
            "steps": metrics.steps,
            "checkpoints": metrics.checkpoints,
            "seed": metrics.seed,
            "dtype": metrics.dtype,
            "decoding": metrics.decoding,
            "trained_on": None if made_by is None else Machine(made_by.commit, made_by.device, made_by.threads),
        }


@dataclass(frozen=True, kw_only=True)
class SweepPoint(Outcome):
    """One fine-tuned model of a sweep.

    kind, value: the varied quantity, or the rule. overrides: of the recipe. differences: of scores, to the continued
    baseline, by split.
    """

    kind: str
    value: float | None
    overrides: list[str] = optional("set", list)
    differences: dict[str, float] = field(default_factory=dict)

    @property
    def is_learned(self) -> bool:
        return self.kind in LEARNED


@dataclass(frozen=True, kw_only=True)
class Sweep(JsonFile):
    """`sweep.json`: the finished runs of a sweep. baseline: the dense model that fine-tuning starts from."""

    COMMAND = "l0drop sweep"

    name: str
    gating: str | None
    baseline: Outcome
    continued: Outcome
    points: list[SweepPoint]
    made_by: Provenance | None = flat()

    @staticmethod
    def upgraded(content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Older files have another name for the continued baseline."""
        older = EARLIER_CONTINUED in content and CONTINUED not in content
        return {**content, CONTINUED: content[EARLIER_CONTINUED]} if older else content

    @property
    def split(self) -> Split:
        """The text that the sweep is scored on."""
        return "test" if self.continued.test is not None else "valid"

    @property
    def scores(self) -> dict[str, Scored]:
        """The scores of all runs on that text."""
        runs = (self.baseline, self.continued, *self.points)
        return {one.run: found for one in runs if (found := one.scored(self.split)) is not None}


@dataclass(frozen=True)
class Timings:
    """`timings.json`: the wall seconds of each run, over all executions."""

    seconds: dict[str, float]
    COMMAND = "l0drop sweep"
    _OTHERS = ("unit", VERSION)

    @classmethod
    def read(cls, path: Path) -> Self:
        found = read_as(dict[str, Any], path, remedy(cls.COMMAND))
        try:
            return cls(from_json(dict[str, float], {run: found[run] for run in found if run not in cls._OTHERS}))
        except FieldError as error:
            raise FileError(f"{path}: {error}; {remedy(cls.COMMAND)}") from error

    def write(self, path: Path) -> None:
        write_json(path, {"unit": "wall seconds", **self.seconds, VERSION: 1})


def add_seconds(path: Path, run: str, seconds: float) -> None:
    """Add to the seconds of a run in a `timings.json`."""
    with locked(path):
        known = Timings.read(path).seconds if path.exists() else {}
        Timings({**known, run: round(known.get(run, 0.0) + seconds, 2)}).write(path)
