"""The file of a decoding benchmark.

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
