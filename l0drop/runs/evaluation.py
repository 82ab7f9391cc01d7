"""The folder of an evaluation: its paths, and its files.

evaluation/  metrics.json  statistics.json.gz  hypotheses.txt  baseline.txt (if there is one)  examples.json

Several systems, each with its own baseline, have numbered files (hypotheses-1.txt).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from l0drop.data.score import BleuTokenizer, MetricName, Score
from l0drop.runs.json_file import (
    FileError,
    JsonFile,
    PackedJsonFile,
    Settings,
    as_json,
    flat,
    optional,
    read_any,
    read_as,
    write_json,
)
from l0drop.runs.provenance import Provenance

Side = Literal["system", "baseline"]
MarkedText = tuple[str, str]
"""Text and its state: kept, dropped, cut (beyond the longest source), or empty for space between tokens."""
RESAMPLES = 2000
SEED = 12345
"""sacreBLEU's default; with it, the draws are those of its paired bootstrap."""
EVALUATED = "evaluation"


@dataclass(frozen=True)
class EvaluationFolder:
    """The paths of an evaluation."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def statistics(self) -> Path:
        return self.path / "statistics.json.gz"

    @property
    def examples(self) -> Path:
        return self.path / "examples.json"

    @property
    def texts(self) -> list[Path]:
        """The outputs that an earlier evaluation wrote."""
        return [*self.path.glob("hypotheses*.txt"), *self.path.glob("baseline*.txt"), *self.path.glob("dense.txt")]


def check_margin(margin: float) -> None:
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin:g}: the acceptable loss should be finite and above 0")


@dataclass(frozen=True)
class Judging:
    """How outputs are scored and compared; the verdict uses `metric`."""

    metric: MetricName = "bleu"
    tokenize: BleuTokenizer = "13a"
    margin: float = 0.5
    documents: bool = False
    """Resample whole documents, which end at blank lines."""
    languages: tuple[str, str] | None = None
    controls: bool = False
    resamples: int = RESAMPLES
    seed: int = SEED

    def __post_init__(self) -> None:
        check_margin(self.margin)


def with_upper(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Older files lack the upper one-sided bound: the end of the two-sided interval, which is a bit higher."""
    return content if "upper" in content or "interval" not in content else {**content, "upper": content["interval"][1]}


@dataclass(frozen=True)
class Difference:
    """One system minus its baseline, with a bootstrap over texts.

    lower, upper: one-sided 95% bounds. interval: two-sided, 95%. p: the share of resamples at or below -margin; the
    system is non-inferior if p ≤ 0.05, which is lower > -margin. units: the number of resampled texts; unit: sentence
    or document. It covers other texts for these two models, not other training runs.
    """

    metric: MetricName
    system: float
    baseline: float
    difference: float
    lower: float
    upper: float
    interval: tuple[float, float]
    margin: float
    p: float
    non_inferior: bool
    units: int
    unit: str
    resamples: int
    seed: int

    upgraded = staticmethod(with_upper)


@dataclass(frozen=True, kw_only=True)
class DifferenceOverBaselines:
    """The mean difference over independent baselines, with bounds that cover other baselines and other texts.

    differences: of each pair. of_baselines: of each baseline, the mean of its pairs; difference: the mean of these.
    baseline_of: for each pair, the index of its baseline in of_baselines. spread: the standard deviation of
    of_baselines; None for one baseline, where the bounds cover texts only. non_inferior: None with fewer than three
    baselines. units, unit: the resampled texts. seeds: the number of pairs. few_seeds: fewer than five baselines.
    Older files lack spread, and do not say which pairs share a baseline: baseline_of, of_baselines and baselines.
    """

    metric: MetricName
    differences: tuple[float, ...]
    difference: float
    lower: float
    upper: float
    interval: tuple[float, float]
    margin: float
    non_inferior: bool | None
    seeds: int
    few_seeds: bool
    units: int
    unit: str
    resamples: int
    seed: int
    spread: float | None = None
    baseline_of: tuple[int, ...] | None = optional()
    of_baselines: tuple[float, ...] | None = optional()
    baselines: int | None = optional()

    upgraded = staticmethod(with_upper)


Compared = Difference | DifferenceOverBaselines


@dataclass(frozen=True)
class FileStamp:
    """Identifies a file by its content."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class SystemRecord:
    """An evaluated system: a model, or a file of outputs.

    kind: model or outputs. scores: by metric. decoding: the settings that reproduce the outputs. sources_cut: the
    number of sources that were too long. controls: scores with wrong sources.
    """

    name: str
    kind: str
    files: list[FileStamp]
    scores: dict[MetricName, Score] = optional(factory=dict)
    decoding: Settings | None = optional()
    sources_cut: int | None = optional()
    sparsity: float | None = optional()
    controls: dict[str, Score] = optional(factory=dict)


@dataclass(frozen=True)
class LostMost:
    """A line, counted from 1, and its difference in chrF."""

    line: int
    difference: float


@dataclass(frozen=True)
class ChrfChanges:
    """The shares of sentences whose chrF falls or rises by more than the threshold."""

    threshold: float
    losing: float
    gaining: float
    worst: list[LostMost]


@dataclass(frozen=True)
class Missing:
    """Expected items, the share of them that each text lacks, and how many were lost and gained.

    lost: items that the baseline and the reference have but the system lacks; gained: items that the system and the
    reference have but the baseline lacks. counted: False with the reason if there is no count, as for negations in an
    unknown language. expected_from: the side that negations are expected from.
    """

    expected: int | None = optional()
    missing: dict[str, float | None] = optional(factory=dict)
    lost: int | None = optional()
    gained: int | None = optional()
    capitalised_in_source: int | None = optional()
    counted: bool | None = optional()
    expected_from: str | None = optional()
    why: str | None = optional()


@dataclass(frozen=True)
class Lengths:
    """Output length / reference length in characters, over the corpus and per sentence; the number of empty outputs."""

    ratio: float
    under_half: float
    over_double: float
    empty: int


@dataclass(frozen=True)
class Tail:
    """Tail risk, which a mean score hides, of one system and its baseline. length: by side."""

    chrf: ChrfChanges
    numbers: Missing
    names: Missing
    negations: Missing
    length: dict[str, Lengths]


@dataclass(frozen=True)
class Agreement:
    """How far outputs agree with dense outputs that stand in for references."""

    same_outputs: int
    tail: Tail


@dataclass(frozen=True)
class EvaluatedRun:
    """One system with its baseline, if it has one. hypotheses: the file of its outputs."""

    hypotheses: str
    system: SystemRecord
    baseline: SystemRecord | None = optional()
    differences: dict[MetricName, Difference] = optional(factory=dict)
    same_outputs: int | None = optional()
    tail: Tail | None = optional()
    agreement: Agreement | None = optional()

    @property
    def tail_or_agreement(self) -> Tail:
        """Tail risk against the baseline, else against the dense outputs."""
        found = self.tail if self.agreement is None or self.tail is not None else self.agreement.tail
        assert found is not None, "this run was compared with nothing"
        return found


@dataclass(frozen=True, kw_only=True)
class Evaluation(JsonFile):
    """`evaluation/metrics.json`: scores, differences and tail risk.

    inputs: where the text was read from. lines, scored: of the text. one_sided: lines that are blank on one side.
    statistics: the name of the file with per-sentence counts. runs: several are one system with several seeds.
    references, meaning, dense: for text without references, the dense model whose outputs stand in for them.
    over_seeds: differences over all runs, by metric.
    """

    COMMAND = "l0drop evaluate"

    inputs: list[Settings]
    lines: int
    scored: int
    one_sided: int
    documents: int
    judging: Judging
    generation: Settings
    runs: list[EvaluatedRun]
    what: str = EVALUATED
    statistics: str | None = optional()
    references: str | None = optional()
    meaning: str | None = optional()
    dense: SystemRecord | None = optional()
    over_seeds: dict[MetricName, DifferenceOverBaselines] = optional(factory=dict)
    verdict: str | None = optional()
    made_by: Provenance | None = flat()

    @property
    def first(self) -> EvaluatedRun:
        """The first seed, which stands for all where one run is shown."""
        return self.runs[0]

    @property
    def is_compared(self) -> bool:
        """Whether the evaluation compares with another system."""
        return self.first.tail is not None

    @property
    def score(self) -> Score:
        """The score of the first run by the metric of the verdict."""
        return self.first.system.scores[self.judging.metric]

    @property
    def score_name(self) -> str:
        """The name of the verdict's metric, such as BLEU; against a dense model's outputs, "BLEU agreement"."""
        return self.score.name if self.references is None else f"{self.score.name} agreement"

    def mean_score(self, side: Side) -> float:
        """The mean over all seeds by the metric of the verdict."""
        records = [run.system if side == "system" else run.baseline for run in self.runs]
        return fmean(record.scores[self.judging.metric].value for record in records if record is not None)

    @property
    def mean_sparsity(self) -> float | None:
        """The mean over all seeds; None without gates."""
        shares = [run.system.sparsity for run in self.runs if run.system.sparsity is not None]
        return fmean(shares) if len(shares) == len(self.runs) else None

    @property
    def difference(self) -> Compared | None:
        """The difference that the verdict is about: over all pairs, or of the only one."""
        metric = self.judging.metric
        return self.over_seeds[metric] if self.over_seeds else self.first.differences.get(metric)

    @property
    def text(self) -> str:
        """The text in words. Held-out lines are named as such: their file is the training text."""
        paths = [str(entry["path"]) for entry in self.inputs if "path" in entry]
        if any("held_out" in entry for entry in self.inputs):
            return f"{self.scored:,} lines held out of {paths[0] if paths else 'the training text'}"
        return f"{self.scored:,} lines of {paths[0] if paths else 'the test text'}"


@dataclass(frozen=True)
class CountedMetric:
    """The score that is computed from counts. columns: what each list of counts holds."""

    name: str
    signature: str
    columns: list[str]


@dataclass(frozen=True, kw_only=True)
class SentenceCounts(PackedJsonFile):
    """`statistics.json.gz`: counts per sentence, without text, from which scores and intervals are computed.

    lines: the line number, from 1, of each scored sentence. documents: the document of each, from 0. systems: by label
    (`system-1`, `baseline-1`, ... or a run's name) and metric, one list per column.
    """

    COMMAND = "l0drop evaluate"

    what: Literal["sentence statistics"] = "sentence statistics"
    format: Literal[1] = 1
    metrics: dict[MetricName, CountedMetric]
    lines: list[int]
    documents: list[int]
    systems: dict[str, dict[MetricName, list[list[float]]]]


def is_evaluation(path: Path) -> bool:
    """Whether a `metrics.json` is of an evaluation, of this version or another."""
    try:
        content = read_any(path, Evaluation.remedy(path))
    except FileError:
        return False
    return isinstance(content, dict) and content.get("what") == EVALUATED


@dataclass(frozen=True)
class ExampleSentence:
    """A sentence to look at, with the dropped parts of its source, and why it was chosen."""

    line: int
    why: str
    source: list[MarkedText]
    reference: str | None
    baseline: str | None
    system: str


def read_examples(path: Path) -> list[ExampleSentence]:
    """Read `examples.json`, a list without a version."""
    return read_as(list[ExampleSentence], path, Evaluation.remedy(path))


def write_examples(examples: list[ExampleSentence], path: Path) -> None:
    write_json(path, as_json(examples))
