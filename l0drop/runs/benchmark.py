"""The files of benchmarks: decoding, training, the cost of gates, and the prediction of a speed-up.

Decoding on a GPU has files of its own (`gpu_benchmark.py`).

`l0drop bench decode RUN --json RUN/bench.json` puts one into the folder of a run, where the report finds it.
"""

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from l0drop.runs.evaluation import FileStamp
from l0drop.runs.json_file import JsonFile, Settings, flat, optional, read_any
from l0drop.runs.provenance import Provenance


@dataclass
class Timing:
    """Seconds per round of one system."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def append(self, seconds: "Seconds") -> None:
        """Add a round."""
        self.cpu.append(seconds.cpu)
        self.wall.append(seconds.wall)

    @property
    def median(self) -> "Seconds":
        return Seconds(statistics.median(self.cpu), statistics.median(self.wall))


@dataclass(frozen=True)
class Seconds:
    """CPU time and wall time."""

    cpu: float
    wall: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)


@dataclass(frozen=True)
class Shape:
    """Sentences in a batch, source tokens of each, target tokens to produce, and the share of encodings dropped."""

    batch: int
    source: int
    target: int
    dropped: float

    def __post_init__(self) -> None:
        for name in ("batch", "source", "target"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropped < 1:
            raise ValueError(f"dropped: expected a share in [0, 1), got {self.dropped}")


# --- decoding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkloadRecord:
    """What was decoded: a batch of a shape on random weights, or lines of a text or recordings on a model.

    changes: to the config of the random model. batch: sentences in a batch of text, or clips. whisper: the size of a
    random Whisper. baseline, rival: models that were decoded beside `model`.
    """

    what: str
    shape: Shape | None = optional()
    changes: Settings | None = optional()
    gating: str | None = optional()
    model: str | None = optional()
    input: FileStamp | None = optional()
    batch: int | None = optional()
    whisper: str | None = optional()
    seconds_of_audio: float | None = optional()
    baseline: str | None = optional()
    rival: str | None = optional()

    @property
    def unit(self) -> str:
        """The name of the inputs."""
        return "sentences" if self.whisper is None and self.seconds_of_audio is None else "clips"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes: of the weights, of the peak beyond the loaded system, of cross-attention's keys and values."""

    weights: int
    beyond_loaded: int | None
    cross_cache: int | None


@dataclass(frozen=True)
class Percentiles:
    p50: float
    p99: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a sentence decoded alone."""

    cpu: Percentiles
    wall: Percentiles


@dataclass(frozen=True, kw_only=True)
class TimedSystem:
    """One system: seconds and medians by phase, CPU time relative to engine-short, tokens, memory, speed."""

    rounds: int = 0
    warm_up: str = ""
    seconds: dict[str, Timing] = field(default_factory=dict)
    median: dict[str, Seconds]
    times_engine_short: dict[str, float] | None
    tokens: int = 0
    memory: MemoryUse | None = None
    sentences_per_second: float | None = None
    latency_ms: Latency | None = optional()


@dataclass(frozen=True)
class Ratio:
    """times: time of `system` / time of `by` in a phase, the median over the rounds that both ran.

    CPU time, and wall time with a GPU.
    """

    phase: str
    system: str
    by: str
    times: float


@dataclass(frozen=True)
class TokenAgreement:
    """Sentences with the same tokens as the reference, with a tie in score, and with other tokens.

    largest_score_gap: over the sentences whose tokens differ.
    """

    reference: str
    must_agree: bool
    same: int
    tied: int
    different: int
    largest_score_gap: float | None = optional()


@dataclass(frozen=True)
class GateCounts:
    """What the gates dropped, and the longest source and memory.

    Of audio, sparsity and source_tokens count the rows that audio covers; sparsity_of_all counts those of padding too.
    """

    sparsity: float
    source_tokens: int
    longest_source: int
    longest_memory: int
    sparsity_of_all: float | None = optional()


@dataclass(frozen=True, kw_only=True)
class DecodeBenchmark(JsonFile):
    """Several systems that decode the same batches. agreement: None for the reference itself.

    variant_gates: what the gates dropped in systems that have a model of their own.
    """

    COMMAND = "l0drop bench decode"

    workload: WorkloadRecord = flat()
    sentences: int
    gates: GateCounts | None
    variant_gates: dict[str, GateCounts] | None = optional()
    generation: Settings
    systems: dict[str, TimedSystem]
    ratios: list[Ratio] = field(default_factory=list)
    agreement: dict[str, TokenAgreement | None] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    ctranslate2: str | None = None
    made_by: Provenance | None = flat()

    def speed_ups(self, system: str, over: str) -> dict[str, float]:
        """The speed-up of a system over another by phase; empty if they did not both run."""
        return {one.phase: one.times for one in self.ratios if (one.by, one.system) == (system, over)}


@dataclass(frozen=True)
class DecodeBenchmarks(JsonFile):
    """Decoding at several shapes."""

    COMMAND = "l0drop bench decode"

    shapes: dict[str, DecodeBenchmark]
    made_by: Provenance | None = flat()

    @property
    def file(self) -> "DecodeBenchmark | DecodeBenchmarks":
        """What is written: of a single shape, its benchmark alone."""
        (first, *others) = self.shapes.values()
        return self if others else first


def read_decode_benchmark(path: Path) -> DecodeBenchmark | None:
    """Read a decoding benchmark; None for a file of another benchmark, such as one on a GPU."""
    content = read_any(path, DecodeBenchmark.remedy(path))
    is_decoding = not isinstance(content, dict) or {"systems", "generation", "gates"} <= content.keys()
    return DecodeBenchmark.read(path) if is_decoding else None


# --- the cost of gates -------------------------------------------------------------------------------------------


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


# --- training ----------------------------------------------------------------------------------------------------


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


# --- prediction --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model and a search that determine the cost of a batch.

    memory: numbers in a memory row's keys. activations: numbers in the widest layer's output for a source token.
    zero_row: whether one row of the short memory represents the dropped encodings. pages: whether large tensors cost
    extra, as on a CPU.
    """

    beams: int
    memory: int
    activations: int
    zero_row: bool = True
    pages: bool = optional(factory=lambda: True)


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """CPU seconds of a batch by round, their median, and the fitted time; decoding has rows and target."""

    batch: int
    rows: int | None = optional()
    target: int | None = optional()
    source: int | None = optional()
    seconds: list[float]
    median: float
    fitted: float


@dataclass(frozen=True)
class PredictedRow:
    """A batch size and a source length. seconds: encode, dense, short. speed_up: decode, both."""

    batch: int
    source: int
    seconds: dict[str, float]
    speed_up: dict[str, float]


@dataclass(frozen=True)
class SpeedUpCheck:
    """The speed-up of decoding on the short memory over the dense one."""

    predicted: float
    measured: float


@dataclass(frozen=True)
class CheckedShape:
    """Predicted and measured seconds of a shape that was not fitted, by phase: encode, dense, short."""

    shape: Shape
    predicted: dict[str, float]
    measured: dict[str, float]
    seconds: dict[str, list[float]]
    error: dict[str, float]
    speed_up: SpeedUpCheck


@dataclass(frozen=True, kw_only=True)
class SpeedPrediction(JsonFile):
    """The predicted speed-up of a short memory. source: the length that the answer is for; None is any length.

    costs, meaning, points: by phase, decode and encode. pays_from: by batch size, then by phase (decode, both).
    """

    COMMAND = "l0drop bench predict"

    what: str
    model: str
    input: FileStamp | None
    beams: int
    target: int
    answer: str = ""
    sparsity: float
    source: int | None = None
    longest_source: int
    linears: str
    rounds: int
    points: dict[str, list[MeasuredPoint]]
    sizes: ModelSizes
    costs: dict[str, dict[str, float]]
    meaning: dict[str, dict[str, str]]
    table: list[PredictedRow]
    pays_from: dict[str, dict[str, int | None]]
    check: list[CheckedShape]
    notes: dict[str, str]
    made_by: Provenance | None = flat()
