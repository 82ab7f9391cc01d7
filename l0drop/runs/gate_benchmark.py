"""The files of benchmarks of gates: their cost in training, between layers, and in low precision."""

from dataclasses import dataclass

from l0drop.runs.benchmark import Timing
from l0drop.runs.json_file import JsonFile, flat
from l0drop.runs.provenance import Provenance


@dataclass(frozen=True)
class EvenBatch:
    """A batch whose sentences all have the same length."""

    sentences: int
    length: int


@dataclass(frozen=True)
class GateCost(JsonFile):
    """A training step with and without the gate. ratio_cpu: CPU time with / without, the median over the rounds."""

    COMMAND = "l0drop bench train"

    what: str
    shape: EvenBatch
    ratio_cpu: float
    seconds: dict[str, Timing]
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class LayerwiseRow:
    """An encoder at one share of rows kept. ratio_cpu: CPU time with rows removed / masked."""

    kept: float
    cpu_seconds_removed: float
    cpu_seconds_masked: float
    ratio_cpu: float


@dataclass(frozen=True)
class LayerwiseSpeed(JsonFile):
    """An encoder with gates between its layers, dropped rows removed and masked."""

    COMMAND = "l0drop bench layerwise"

    what: str
    shape: EvenBatch
    rows: list[LayerwiseRow]
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class DriftRow:
    """Mean absolute differences of logits / the mean absolute logit in float32."""

    family: str
    gating: str
    attention: str
    dtype: str
    short_against_dense: float
    dense_against_float32: float


@dataclass(frozen=True)
class Drift(JsonFile):
    """How far low precision moves the logits. kept: the share of encodings kept."""

    COMMAND = "l0drop bench drift"

    what: str
    kept: float
    rows: list[DriftRow]
    made_by: Provenance | None = flat()
