"""Word and character error rates of transcripts, with a signature that says how to reproduce them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from l0drop.data.score import Score
from l0drop.extras import needed_for

Unit = Literal["word", "character"]
RUNAWAY = 2.0
"""A transcript with more than this many times the words of its reference, and more than ten of them, is a runaway."""
PASSAGE = 10
"""A passage of at least this number of words in a row that a transcript lacks is skipped."""


@dataclass(frozen=True)
class ClipErrors:
    """The errors of one transcript against its reference, in words or characters."""

    substitutions: int
    deletions: int
    insertions: int
    length: int
    """Words or characters of the reference."""
    written: int
    """Words or characters of the transcript."""
    skipped: int = 0
    """Words of the reference in skipped passages; 0 in counts of characters."""

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def is_runaway(self) -> bool:
        return self.written - self.length > 10 and self.written > RUNAWAY * self.length


def wer(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    """Word error rate in percent: errors over words of all references, both sides in Whisper's English normal form."""
    return _rate("WER", hyps, refs, "word")


def cer(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    """Character error rate in percent, spaces included, in Whisper's English normal form."""
    return _rate("CER", hyps, refs, "character")


def clip_errors(hyps: Sequence[str], refs: Sequence[str], unit: Unit = "word") -> list[ClipErrors]:
    """The errors of each transcript; their sums give the rate, so a bootstrap over clips can recompute it."""
    with needed_for("error rates of transcripts"):
        import jiwer
    if len(hyps) != len(refs):
        raise ValueError(f"{len(hyps)} transcripts but {len(refs)} references: each transcript needs exactly one")
    if not hyps:
        raise ValueError("there is nothing to score: no transcripts and no references")
    align: Callable[[str, str], Any] = jiwer.process_words if unit == "word" else jiwer.process_characters
    normal = EnglishTextNormalizer({})
    found = []
    for hyp, ref in zip(map(normal, hyps), map(normal, refs), strict=True):
        written, length = (len(text.split() if unit == "word" else text) for text in (hyp, ref))
        if not length:  # jiwer aligns with a text only
            found.append(ClipErrors(0, 0, written, 0, written))
            continue
        result = align(ref, hyp)
        errors = result.substitutions, result.deletions, result.insertions
        found.append(ClipErrors(*errors, length, written, _skipped(result) if unit == "word" else 0))
    return found


def _skipped(result: Any) -> int:
    """The number of reference words in passages that are missing as a whole."""
    missing = (part.ref_end_idx - part.ref_start_idx for part in result.alignments[0] if part.type == "delete")
    return sum(words for words in missing if words >= PASSAGE)


def _rate(name: str, hyps: Sequence[str], refs: Sequence[str], unit: Unit) -> Score:
    clips = clip_errors(hyps, refs, unit)
    length = sum(clip.length for clip in clips)
    if not length:
        raise ValueError("references: all of them are blank in Whisper's normal form, so there is no rate")
    details = {
        kind: float(sum(getattr(clip, kind) for clip in clips))
        for kind in ("substitutions", "deletions", "insertions", "errors", "length", "is_runaway")
    }
    details["runaways"] = details.pop("is_runaway")
    details["empty"] = float(sum(not clip.written and clip.length > 0 for clip in clips))
    signature = (
        f"unit:{unit}|agg:corpus|norm:whisper-english|transformers:{version('transformers')}|jiwer:{version('jiwer')}"
    )
    return Score(name, 100 * details["errors"] / length, signature, details)
