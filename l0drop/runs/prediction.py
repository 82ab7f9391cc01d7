"""The file of a predicted speed-up."""

from dataclasses import dataclass

from l0drop.runs.benchmark import Shape
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.json_file import JsonFile, flat, optional
from l0drop.runs.provenance import Provenance


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
