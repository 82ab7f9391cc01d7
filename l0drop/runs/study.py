"""The files of a study: several systems, each trained with several seeds."""

from dataclasses import dataclass

from l0drop.data.score import Score
from l0drop.runs.evaluation import Compared, Difference, DifferenceOverBaselines
from l0drop.runs.json_file import JsonFile, Settings, flat, optional
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import CalibrationRecord, DialRow, LengthPenaltyRow, Scored, Split


@dataclass(frozen=True)
class SeedRun:
    """One run of a system. outputs_sha256: of the compared outputs; shows whether a repeated run is identical."""

    seed: int
    train_seconds: float | None = optional()
    steps: int | None = optional()
    lambda_: float | None = optional("lambda")
    calibration: CalibrationRecord | None = optional()
    valid: Scored | None = optional()
    test: Scored | None = optional()
    dial: list[DialRow] | None = optional()
    length_penalties: list[LengthPenaltyRow] | None = optional()
    outputs_sha256: str | None = optional()

    def value(self, split: Split = "test") -> float:
        """The score on a text that this run was scored on."""
        found = self.test if split == "test" else self.valid
        assert found is not None, f"seed {self.seed} was not scored on the {split} text"
        return found.score.value

    @property
    def sparsity(self) -> float | None:
        """On the test text, else on the validation text."""
        scored = self.test or self.valid
        return None if scored is None else scored.sparsity


@dataclass(frozen=True)
class StudiedSystem:
    """The runs of one system. recipe: of one seed; the others differ in seed, name and model.init.

    against_on: the difference to the continued baseline. against: to other systems, by name. one_seed: of a system with
    one seed, the differences to others, over sentences only.
    """

    recipe: Settings
    runs: list[SeedRun]
    provenance: Provenance | None = optional()
    against_on: DifferenceOverBaselines | None = optional()
    against: dict[str, DifferenceOverBaselines] = optional(factory=dict)
    one_seed: dict[str, Difference] = optional(factory=dict)


@dataclass(frozen=True)
class StatisticsFile:
    """The file with the per-sentence statistics of all outputs."""

    file: str
    sha256: str


@dataclass(frozen=True)
class StudyResults(JsonFile):
    """`results.json`: all systems of a study, by name. It contains no text of the data."""

    COMMAND = "the script of the study"

    what: str
    systems: dict[str, StudiedSystem]
    statistics: StatisticsFile | None = optional()

    @property
    def metric(self) -> str:
        """The name of the score; all systems have the same."""
        scored = (run.test or run.valid for one in self.systems.values() for run in one.runs)
        return next(one.score.name for one in scored if one is not None)


@dataclass(frozen=True)
class Rival:
    """A system at one beam size: its score on the whole test text, and CPU seconds per round on some sentences."""

    system: str
    run: str
    beams: int
    score: Score
    cpu_seconds: list[float] = optional(factory=list)
    sentences: int | None = optional()


@dataclass(frozen=True)
class Rivals(JsonFile):
    """`rivals.json`: quality and time of several systems at several beam sizes."""

    COMMAND = "the script of the study"

    what: str
    rows: list[Rival]
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class LengthScore:
    """A run on the examples of one length: its score, and its difference to the continued baseline of its seed.

    length: the longest source in subwords. source_tokens: without EOS. controls: scores with wrong sources. difference:
    None if the two were not trained for the same number of steps.
    """

    system: str
    split: Split
    length: int
    examples: int
    source_tokens: int
    score: Score
    sparsity: float | None = optional()
    controls: dict[str, Score] = optional(factory=dict)
    difference: Difference | None = optional()
    seed: int = 1


@dataclass(frozen=True)
class LengthDifference:
    """The difference of a system to the continued baseline on the examples of one length, over baselines."""

    system: str
    split: Split
    length: int
    difference: DifferenceOverBaselines


@dataclass(frozen=True)
class LengthScores(JsonFile):
    """`lengths.json`: the runs of a study by the length of the examples. over: differences over several baselines."""

    COMMAND = "the script of the study"

    what: str
    rows: list[LengthScore]
    over: list[LengthDifference] = optional(factory=list)

    def of(self, system: str, split: Split, length: int) -> list[LengthScore]:
        """One row for each seed."""
        wanted = (system, split, length)
        return [row for row in self.rows if (row.system, row.split, row.length) == wanted]

    def difference(self, system: str, split: Split, length: int) -> Compared | None:
        """Over baselines, or of the only seed over documents."""
        wanted = (system, split, length)
        for one in self.over:
            if (one.system, one.split, one.length) == wanted:
                return one.difference
        rows = self.of(system, split, length)
        return rows[0].difference if len(rows) == 1 else None


@dataclass(frozen=True)
class Sources(JsonFile):
    """`sources.json` of a run: the sparsity by split and length, and the output for an empty source."""

    COMMAND = "the script of the study"

    empty: str
    sparsity: dict[str, dict[str, float]] = optional(factory=dict)


@dataclass(frozen=True)
class BeamScore:
    """A system on the test examples of one length with one number of beams.

    dense: on the full gated memory. seconds: wall time of all examples, from text to text, per round. difference: to
    the first system with the most beams.
    """

    system: str
    beams: int
    length: int
    dense: bool
    score: Score
    seconds: list[float]
    output_tokens: int
    difference: Difference | None = optional()


@dataclass(frozen=True)
class BeamScores(JsonFile):
    """`beams.json`: quality and time of systems by their number of beams."""

    COMMAND = "scripts/document_beams.py"

    what: str
    dtype: str
    rows: list[BeamScore]
    made_by: Provenance | None = flat()
