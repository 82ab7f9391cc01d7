"""The files of a study on speech: the evaluation of transcripts, and the analysis of dropped rows.

evaluation/  metrics.json  statistics.json.gz  transcripts-1.txt ...  baseline.txt (if there is one)
MODEL/       analysis.json  figures/  report.html
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from l0drop.data.score import Score
from l0drop.runs.analysis import Bins, Rate
from l0drop.runs.evaluation import RESAMPLES, SEED, FileStamp, Missing, check_margin
from l0drop.runs.json_file import FieldError, FileError, JsonFile, PackedJsonFile, Settings, flat, optional, read_any
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import DialRow

SPEECH_EVALUATION, SPEECH_ANALYSIS = "speech evaluation", "speech analysis"
ErrorRate = Literal["wer", "cer"]
ERROR_RATES: tuple[ErrorRate, ...] = get_args(ErrorRate)
COLUMNS = ("substitutions", "deletions", "insertions", "length", "written")
"""The counts of a clip, in words for `wer` and in characters for `cer`."""


# --- evaluation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeechJudging:
    """How transcripts are compared. margin: the acceptable rise of the word error rate, in points."""

    margin: float = 0.5
    resamples: int = RESAMPLES
    seed: int = SEED
    trim: float | None = optional()
    """Quiet beginnings and ends, this many decibels below the loudest moment, are cut off in front of every model."""

    def __post_init__(self) -> None:
        check_margin(self.margin)


@dataclass(frozen=True)
class ErrorDifference:
    """The error rate of a system minus the baseline's, in points; above 0 the system is worse.

    lower, upper: one-sided 95% bounds. interval: two-sided, 95%. p: the share of resamples at or above the margin; the
    system is non-inferior if p ≤ 0.05, which is upper < margin. Clips are resampled within their speaker: the bounds
    cover other clips of these speakers, for these two models. speakers: 0 if they are not known.
    """

    metric: ErrorRate
    system: float
    baseline: float
    difference: float
    lower: float
    upper: float
    interval: tuple[float, float]
    margin: float
    p: float
    non_inferior: bool
    clips: int
    speakers: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class SpeakerErrors:
    """The error rates of one speaker's clips, in percent. words: of the references."""

    clips: int
    words: int
    wer: float
    cer: float


@dataclass(frozen=True)
class EndToEnd:
    """Seconds from samples to text (features, encoder, search), without loading the model or reading files.

    cpu: of all threads of the process. audio: seconds of audio. batch_size: clips decoded at once.
    """

    cpu_seconds: float
    wall_seconds: float
    audio_seconds: float
    batch_size: int


@dataclass(frozen=True)
class ClipChange:
    """A line of the list, counted from 1, its file, and the change of its word error rate in points."""

    line: int
    file: str
    difference: float


@dataclass(frozen=True)
class SpeechTail:
    """Tail risk of a system against its baseline.

    rising, falling: the clips whose word error rate rises or falls by more than `threshold` points. empty, runaways:
    clips by side. numbers, names: expected from the baseline's transcripts; lost: in the baseline's transcript and in
    the reference, but not in the system's; gained: the reverse. skipped: words of the references, by side, in passages
    that the transcripts lack; None in older files.
    """

    threshold: float
    rising: int
    falling: int
    worst: list[ClipChange]
    empty: dict[str, int]
    runaways: dict[str, int]
    numbers: Missing
    names: Missing
    skipped: dict[str, int] | None = optional()


@dataclass(frozen=True)
class SpeechSystem:
    """A model, or a file with one transcript per line of the list.

    sparsity: of the rows that audio covers; sparsity_of_all: of all rows; both None without gates. transcripts: the
    file of its texts. decoding: the settings that reproduce them.
    """

    name: str
    files: list[FileStamp]
    transcripts: str
    scores: dict[ErrorRate, Score]
    speakers: dict[str, SpeakerErrors]
    sparsity: float | None = optional()
    sparsity_of_all: float | None = optional()
    time: EndToEnd | None = optional()
    decoding: Settings | None = optional()
    differences: dict[ErrorRate, ErrorDifference] = optional(factory=dict)
    same_outputs: int | None = optional()
    tail: SpeechTail | None = optional()
    verdict: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class SpeechEvaluation(JsonFile):
    """`evaluation/metrics.json` of transcripts.

    silent: clips without sound, whose transcripts are blank. long: recordings of more than one window, which are always
    decoded with timestamps; None if there are none. curve: the first system at several settings of the dial.
    """

    COMMAND = "l0drop evaluate"

    audio: FileStamp
    clips: int
    seconds: float
    silent: int
    judging: SpeechJudging
    systems: list[SpeechSystem]
    baseline: SpeechSystem | None = optional()
    seconds_trimmed: float | None = optional()
    long: int | None = optional()
    curve: list[DialRow] = optional(factory=list)
    what: str = SPEECH_EVALUATION
    made_by: Provenance | None = flat()


@dataclass(frozen=True)
class ClipCounts(PackedJsonFile):
    """`statistics.json.gz`: error counts per clip, without text, from which scores and intervals are computed.

    systems: by label (`system-1`, ..., `baseline`) and metric, one list of counts per clip, in the order of `columns`.
    """

    COMMAND = "l0drop evaluate"

    lines: list[int]
    speakers: list[str]
    signatures: dict[ErrorRate, str]
    systems: dict[str, dict[ErrorRate, list[list[int]]]]
    columns: list[str] = field(default_factory=lambda: [*COLUMNS])
    what: Literal["clip statistics"] = "clip statistics"

    def __post_init__(self) -> None:
        if self.columns != [*COLUMNS]:
            raise FieldError(f"columns: expected {', '.join(COLUMNS)}")


# --- analysis -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedWord:
    """A word and its times in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class ShownClip:
    """A clip to draw: its spectrogram, dropped rows and words.

    levels: [rows][mels], from low to high, 0 to 99. kept: of each row. words: of the dense model's transcript, at their
    times. text: the gated model's transcript.
    """

    line: int
    file: str
    seconds: float
    row_seconds: float
    levels: list[list[int]]
    kept: list[bool]
    words: list[TimedWord]
    text: str


@dataclass(frozen=True, kw_only=True)
class SpeechAnalysis(JsonFile):
    """`analysis.json` of a gated Whisper: the share of rows dropped, by kind of row; a token of a `Rate` is a row.

    covered: rows that audio covers; padding: the other rows of the window. energy: covered rows by tenth of the clip's
    energy, from quiet to loud. position: covered rows by seconds in the window. after_end: padding by seconds after the
    end of the audio. words: covered rows by their place in the dense model's words. longer: clips of more than one
    window, which are left out.
    """

    COMMAND = "l0drop analyze"

    model: str
    fingerprint: str
    dense: str | None
    audio: FileStamp
    clips: int
    seconds: float
    silent: int
    longer: int
    covered: Rate
    padding: Rate
    energy: Bins
    position: Bins
    after_end: Bins
    words: dict[str, Rate] = field(default_factory=dict)
    shown: list[ShownClip] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    what: str = SPEECH_ANALYSIS
    dtype: str = "float32"
    made_by: Provenance | None = flat()


def kind_of(path: Path) -> Any:
    """The field `what` of a JSON file; None if there is no such file or field, or it is broken."""
    try:
        content = read_any(path, "") if path.is_file() else None
    except FileError:
        return None
    return content.get("what") if isinstance(content, dict) else None
