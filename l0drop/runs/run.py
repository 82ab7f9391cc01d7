"""The folder of a run: its paths, and the files that training and the dial write.

runs/NAME/  recipe.yaml  tokenizer/  data/  checkpoints/  log.jsonl  model/  outputs/  metrics.json
            analysis.json  bench.json  dial.json  evaluation/  figures/  report.html
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from l0drop.data.corpus import Summary
from l0drop.data.score import Score
from l0drop.runs.json_file import JsonFile, Settings, flat, optional
from l0drop.runs.log import TrainingLog
from l0drop.runs.provenance import Provenance

Split = Literal["valid", "test"]
SPLITS: tuple[Split, Split] = ("valid", "test")


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def target_tokenizer(self) -> Path:
        """Exists only with separate vocabularies."""
        return self.path / "tokenizer_target"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def process_output(self) -> Path:
        """What the run's own process printed, if it had one."""
        return self.path / "output.txt"

    @property
    def outputs(self) -> Path:
        return self.path / "outputs"

    def outputs_on(self, split: Split) -> Path:
        """The outputs of the finished model on a text."""
        return self.outputs / f"{split}.txt"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis.json"

    @property
    def benchmark(self) -> Path:
        return self.path / "bench.json"

    @property
    def dial(self) -> Path:
        return self.path / "dial.json"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def length_penalties(self) -> Path:
        return self.path / "length_penalties.json"

    @property
    def is_finished(self) -> bool:
        return self.metrics.exists()

    def train_seconds(self) -> float:
        """Of all executions, from the log: one line for each, none for one that was killed."""
        return sum(entry.train_runtime for entry in TrainingLog(self.log).entries())


@dataclass(frozen=True)
class GateRates:
    """Sparsity and the values of a model's gates on a text; older files have the sparsity alone.

    expected_open_rate: None for gates without a distribution. exactly_zero, exactly_one, between: shares of gates.
    """

    sparsity: float
    expected_open_rate: float | None = None
    gates_exactly_zero: float | None = None
    gates_exactly_one: float | None = None
    gates_between: float | None = None


@dataclass(frozen=True)
class Scored:
    """The score of a run on one text. references: whose outputs they are, if no human wrote them. length_penalty: if it
    is not that of the run's `decoding`."""

    score: Score
    sentences: int
    references: str | None = optional()
    length_penalty: float | None = optional()
    gates: GateRates | None = flat()

    @property
    def sparsity(self) -> float | None:
        return None if self.gates is None else self.gates.sparsity


@dataclass(frozen=True)
class CalibrationRecord:
    """The calibration of a run: the fields of `Calibration`, and what it says about itself."""

    threshold: float
    target: float
    before: float
    after: float
    inner_moved: float = 0.0
    met: bool | None = None
    warning: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class RunMetrics(JsonFile):
    """`metrics.json` of a finished run: its scores, and what is needed to repeat them.

    checkpoints: the averaged ones. lambda_: the last weight of the penalty. held_out: lines taken from the training
    text, by split.
    """

    COMMAND = "l0drop train"

    name: str
    steps: int
    seed: int
    dtype: str
    decoding: Settings
    checkpoints: list[str] = field(default_factory=list)
    lambda_: float | None = optional("lambda")
    calibration: CalibrationRecord | None = optional()
    valid: Scored | None = optional()
    test: Scored | None = optional()
    corpora: dict[str, Summary] = optional(factory=dict)
    held_out: dict[str, int] = optional(factory=dict)
    made_by: Provenance | None = flat()

    @property
    def last(self) -> Scored | None:
        """On the test text, else on the validation text."""
        return self.test or self.valid


@dataclass(frozen=True)
class DialRow:
    """The score at one setting of the dial; keep: the share kept, None as trained."""

    keep: float | None
    sparsity: float
    score: Score
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class DialCurve(JsonFile):
    """`dial.json`: one model at several settings of the dial. references: see `Scored`."""

    COMMAND = "l0drop bench dial"

    run: str
    split: str
    sentences: int
    rows: list[DialRow]
    seed: int
    decoding: Settings
    references: str | None = optional()
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class LengthPenaltyRow:
    """The score on the validation text at one length penalty."""

    length_penalty: float
    valid: float


@dataclass(frozen=True, kw_only=True)
class LengthPenaltyCurve(JsonFile):
    """`length_penalties.json`: one model at several length penalties; the other settings are those of `decoding`."""

    COMMAND = "the script of the study"

    run: str
    rows: list[LengthPenaltyRow]
    seed: int
    decoding: Settings
    made_by: Provenance | None = flat()

    @property
    def best(self) -> float:
        """The length penalty with the best score; of equal ones the first."""
        return max(self.rows, key=lambda row: row.valid).length_penalty
