"""The file of a benchmark of training."""

from dataclasses import dataclass

from l0drop.runs.json_file import JsonFile, flat
from l0drop.runs.provenance import Provenance


@dataclass(frozen=True)
class TrainingRound:
    """The timed steps of one system. mfu: share of a large matrix product's FLOP/s; of_positions: with padding."""

    tokens_per_second: float
    tokens_per_step: float
    milliseconds_per_step: float
    mfu: float
    mfu_of_positions: float
    steps: int
    seconds_before: float
    peak_memory_gib: float


@dataclass(frozen=True)
class LossCurves:
    """Cross-entropy by step. Over the second half: difference: |fast - plain|; noise: between two plain runs."""

    log_every: int
    cross_entropy: dict[str, list[float]]
    difference: float
    noise: float


@dataclass(frozen=True)
class TrainingSpeed(JsonFile):
    """Our trainer and Hugging Face's, by system. tokens_per_second, mfu: medians over the rounds; mfu is of ours."""

    COMMAND = "l0drop bench train --device cuda"

    what: str
    precision: str
    batch_tokens: int
    label_smoothing: float
    matrix_tflops: float
    tokens_per_second: dict[str, float]
    times_theirs: float
    times_theirs_with_cudnn_attention_off: float
    mfu: float
    mfu_of_positions: float
    gate_overhead: float
    rounds: dict[str, list[TrainingRound]]
    curves: LossCurves
    made_by: Provenance | None = flat()
