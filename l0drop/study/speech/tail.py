"""Tail risk of transcripts: clips that got much worse, empty and runaway outputs, lost numbers and names."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from l0drop.data.speech_metrics import ClipErrors
from l0drop.data.spoken import SpokenClip
from l0drop.runs.evaluation import Missing
from l0drop.runs.speech import ClipChange, SpeechTail
from l0drop.study.tail import WORST, capitalised, missing, numbers, words

RISE = 20.0
"""Points of the word error rate of one clip."""
Items = Callable[[str], Counter[str]]


def speech_tail(
    clips: Sequence[SpokenClip],
    outputs: Sequence[str],
    baseline: Sequence[str],
    errors: Sequence[ClipErrors],
    errors_baseline: Sequence[ClipErrors],
) -> SpeechTail:
    """All figures of one system and its baseline, from transcripts and word errors."""
    change = np.array([_rate(ours) - _rate(theirs) for ours, theirs in zip(errors, errors_baseline, strict=True)])
    order = np.argsort(-change, kind="stable")[:WORST]
    sides = {"system": errors, "baseline": errors_baseline}
    references = [clip.text for clip in clips]
    normal = EnglishTextNormalizer({})  # references spell numbers as words, transcripts as digits

    def digits(text: str) -> Counter[str]:
        return numbers(normal(text))

    return SpeechTail(
        threshold=RISE,
        rising=int((change > RISE).sum()),
        falling=int((change < -RISE).sum()),
        worst=[ClipChange(clips[i].line, clips[i].name, float(change[i])) for i in order if change[i] > 0],
        empty={side: sum(not clip.written and clip.length > 0 for clip in found) for side, found in sides.items()},
        runaways={side: sum(clip.is_runaway for clip in found) for side, found in sides.items()},
        numbers=_lost(digits, digits, outputs, baseline, references),
        skipped={side: sum(clip.skipped for clip in found) for side, found in sides.items()},
        names=_lost(_names, _lower_words, outputs, baseline, references),
    )


def _rate(clip: ClipErrors) -> float:
    return 100 * clip.errors / max(1, clip.length)


def _names(text: str) -> Counter[str]:
    """Capitalised words inside a sentence, in lower case, as references have them."""
    return Counter(word.lower() for word in capitalised(text).elements())


def _lower_words(text: str) -> Counter[str]:
    return words(text.lower())


def _lost(
    expected: Items, found: Items, outputs: Sequence[str], baseline: Sequence[str], references: Sequence[str]
) -> Missing:
    """Items that the baseline's transcripts have and the system's lack; gained: the same with the sides exchanged."""
    there = {"system": outputs, "baseline": baseline, "reference": references}
    counted = {side: [found(text) for text in texts] for side, texts in there.items()}
    ours = missing([expected(text) for text in baseline], counted)
    exchanged = {**counted, "system": counted["baseline"], "baseline": counted["system"]}
    return replace(ours, gained=missing([expected(text) for text in outputs], exchanged).lost)
