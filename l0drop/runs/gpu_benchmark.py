"""The files of `l0drop bench decode --device cuda`: batches of set shapes, and lines of text."""

from dataclasses import dataclass, field

from l0drop.runs.benchmark import Percentiles, Ratio, Shape, TokenAgreement
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.json_file import JsonFile, Settings, flat, optional
from l0drop.runs.provenance import Provenance


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a decoding step moves at least, on average over the steps of a batch.

    cross_cache: keys and values of the memory. self_cache: keys and values of the target, those of every beam. weights:
    of the decoder's layers and the output layer. logits: written once and read once.
    """

    cross_cache: int
    self_cache: int
    weights: int
    logits: int

    @property
    def total(self) -> int:
        return self.cross_cache + self.self_cache + self.weights + self.logits


@dataclass(frozen=True)
class SameTokens:
    """Outputs compared with a reference: sentences with the same tokens, and the share of equal tokens, by position."""

    reference: str
    sentences: int
    tokens: float


@dataclass(frozen=True, kw_only=True)
class GpuSystem:
    """One system: wall seconds per round and their medians by phase, and milliseconds per decoding step.

    Phases: encode, decode, end_to_end; and search, where decoding is more than one step per token, as Whisper's is.

    least_bytes: of a step, for our engine; times_floor: time of a step / time to move them at the measured bandwidth.
    peak_memory: bytes of the GPU's memory beyond the weights, which all systems but CTranslate2 share.
    """

    seconds: dict[str, list[float]]
    median: dict[str, float]
    milliseconds_per_step: float
    least_bytes: StepBytes | None = optional()
    times_floor: float | None = optional()
    peak_memory: int
    same_tokens: SameTokens | None = optional()


@dataclass(frozen=True, kw_only=True)
class GpuShape:
    """The systems at one shape. Ratios are of wall time. left_out: systems that failed, with the reason.

    whisper: the size of a random Whisper, whose batches are clips.
    """

    shape: Shape
    whisper: str | None = optional()
    generation: Settings
    longest_memory: int
    systems: dict[str, GpuSystem]
    ratios: list[Ratio]
    left_out: dict[str, str] = optional(factory=dict)

    def times(self, phase: str, system: str, by: str) -> float | None:
        """The speed-up of `by` over `system` in a phase; None if they did not both run."""
        found = (one.times for one in self.ratios if (one.phase, one.system, one.by) == (phase, system, by))
        return next(found, None)


@dataclass(frozen=True, kw_only=True)
class TokenCheck:
    """One shape in float32, in which all systems must find the same tokens, or outputs that tie in score."""

    shape: Shape
    agreement: dict[str, TokenAgreement | None]


@dataclass(frozen=True, kw_only=True)
class GpuDecodeBenchmark(JsonFile):
    """Decoding at several shapes on a GPU. bytes_per_second: of a large copy, bytes read and written."""

    COMMAND = "l0drop bench decode --device cuda"

    what: str
    dtype: str
    gating: str
    changes: Settings
    bytes_per_second: float
    shapes: dict[str, GpuShape]
    check: TokenCheck | None = optional()
    notes: dict[str, str] = field(default_factory=dict)
    ctranslate2: str | None = None
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class Stopped:
    """A call that was not finished: its seconds, and the share of the source tokens that were decoded."""

    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class GpuTextSystem:
    """One system on lines of text, from text to text. seconds: wall time of all lines, by round.

    batch_tokens: of the batches that are timed. tried: seconds of the calls that found them; stopped: those that were
    too slow to finish. latency_ms: of lines decoded alone, in latency_rounds.
    """

    seconds: list[float]
    median: float
    sentences_per_second: float
    output_tokens: int
    batch_tokens: int | None = optional()
    tried: dict[str, float] = optional(factory=dict)
    stopped: dict[str, Stopped] = optional(factory=dict)
    latency_ms: Percentiles | None = optional()
    latency_rounds: int | None = optional()


@dataclass(frozen=True, kw_only=True)
class GpuTextBenchmark(JsonFile):
    """Lines of text on a GPU. Ratios are of the wall time of all lines. sparsity: None without a gate.

    baseline: the dense model that the systems of others decode, and ours as engine-baseline. alone: the number of lines
    that were also decoded alone. limited: what was measured less often than asked, and why.
    """

    COMMAND = "l0drop bench decode --device cuda"

    what: str
    model: str
    input: FileStamp
    dtype: str
    sentences: int
    source_tokens: int
    sparsity: float | None
    generation: Settings
    systems: dict[str, GpuTextSystem]
    ratios: list[Ratio]
    baseline: str | None = optional()
    alone: int | None = optional()
    limited: list[str] = optional(factory=list)
    left_out: dict[str, str] = optional(factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    ctranslate2: str | None = None
    made_by: Provenance | None = flat()
