"""`OUTPUT.summary.json`: what a job of decoding has read and written, how, and on which machine."""

from dataclasses import dataclass, fields

from l0drop.runs.json_file import JsonFile, Settings, flat
from l0drop.runs.provenance import Provenance


def _share_dropped(kept: int, all_: int) -> float | None:
    return 1 - kept / all_ if all_ else None


@dataclass
class LineTotals:
    """Sums over the lines written. `decoding_seconds` is the sum over processes."""

    lines: int = 0
    blank: int = 0
    cut: int = 0
    source_tokens: int = 0
    kept_tokens: int = 0
    output_tokens: int = 0
    halved: int = 0
    decoding_seconds: float = 0.0

    @property
    def sparsity(self) -> float | None:
        """Dropped / real source tokens; None without source tokens."""
        return _share_dropped(self.kept_tokens, self.source_tokens)

    def add(self, other: "LineTotals") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True)
class AudioTotals:
    """Counts over files: all, failed, silent; seconds of audio; rows that audio covers, and kept ones among them."""

    files: int = 0
    failed: int = 0
    silent: int = 0
    seconds: float = 0.0
    covered: int = 0
    kept: int = 0
    rows: int = 0
    rows_kept: int = 0

    @property
    def sparsity(self) -> float | None:
        """The share of dropped rows among those that audio covers."""
        return _share_dropped(self.kept, self.covered)

    @property
    def sparsity_of_all(self) -> float | None:
        return _share_dropped(self.rows_kept, self.rows)

    def plus(self, other: "AudioTotals") -> "AudioTotals":
        return AudioTotals(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True, kw_only=True)
class TextSummary(JsonFile):
    """The summary of translated lines. seconds: wall time. settings: everything that determines the output."""

    COMMAND = "l0drop translate"

    totals: LineTotals = flat()
    sparsity: float | None
    seconds: float
    processes: int
    settings: Settings
    made_by: Provenance | None = flat()


@dataclass(frozen=True, kw_only=True)
class SpeechSummary(JsonFile):
    """The summary of transcribed files; the `seconds` of the totals are of audio."""

    COMMAND = "l0drop transcribe"

    totals: AudioTotals = flat()
    sparsity: float | None
    sparsity_of_all: float | None
    wall_seconds: float
    settings: Settings
    made_by: Provenance | None = flat()
