"""Times of words: those of a dense Whisper's tokens, and where its words stand among the encoder rows of a clip.

The alignment of tokens has no gaps: a word ends where the next one begins. So pauses come from the audio: a run of at
least 100 ms of quiet rows that reaches the boundary of a word belongs to no word.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l0drop.data.audio import RATE, Audio, log_mel, row_power
from l0drop.decoding.speech import FRAME_SECONDS, ROW_SECONDS, SpeechModel
from l0drop.runs.speech import TimedWord

PLACES = ("inside words", "at the edges of words", "between words", "before the first word", "after the last word")
INSIDE, EDGE, BETWEEN, BEFORE, AFTER = range(len(PLACES))
EDGE_ROWS = 2
"""Rows at each end of a word that are its edge: 40 ms."""
PAUSE_ROWS = 5
"""The shortest pause: 100 ms."""
QUIET = 30.0
"""Rows this many decibels below the loudest row of the clip are quiet."""
ROW_SAMPLES = round(ROW_SECONDS * RATE)


@torch.no_grad()
def word_times(model: SpeechModel, clip: Audio, generation: Any) -> list[TimedWord]:
    """The words of a clip of at most one window, with the times that the model's attention gives to their tokens.

    A word begins with a token that begins with a space, so languages without spaces have one long word.
    """
    features = log_mel(clip.samples, model.extractor, padded=True)[None].to(model.model.device, model.model.dtype)
    frames = max(1, len(clip.samples) // model.extractor.hop_length)
    mask = (torch.arange(features.shape[2]) < frames)[None].long().to(features.device)
    network: Any = model.model
    found = network.generate(features, attention_mask=mask, **{**generation, "return_token_timestamps": True})
    first_special = min(model.tokenizer.all_special_ids)
    words: list[tuple[list[int], float]] = []
    for token, time in zip(found["sequences"][0].tolist(), found["token_timestamps"][0].tolist(), strict=False):
        if token >= first_special:
            continue
        if not words or str(model.tokenizer.decode([token])).startswith(" "):
            words.append(([], time))
        words[-1][0].append(token)
    ends = [*(start for _, start in words[1:]), frames * FRAME_SECONDS]
    return [
        TimedWord(str(model.tokenizer.decode(tokens)).strip(), round(start, 2), round(max(start, end), 2))
        for (tokens, start), end in zip(words, ends, strict=True)
    ]


def row_energy(clip: Audio, rows: int) -> NDArray[np.float64]:
    """[rows], decibels of the audio that each encoder row stands for."""
    return 10 * np.log10(row_power(clip.samples, ROW_SAMPLES, rows) + 1e-12)


def pauses(energy: NDArray[np.float64], boundaries: Sequence[int]) -> NDArray[np.bool_]:
    """[rows], True in runs of quiet rows that contain a boundary between words, or touch the start or the end."""
    quiet = energy < energy.max() - QUIET
    found = np.zeros(len(quiet), dtype=bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(int)))
    for start, end in edges.reshape(-1, 2).tolist():
        if end - start >= PAUSE_ROWS and any(start <= boundary <= end for boundary in boundaries):
            found[start:end] = True
    return found


def places(words: Sequence[TimedWord], energy: NDArray[np.float64]) -> NDArray[np.int64]:
    """[rows], the place of each covered row among the words: an index into `PLACES`."""
    rows = len(energy)
    spans = [(round(word.start / ROW_SECONDS), min(rows, round(word.end / ROW_SECONDS))) for word in words]
    silent = pauses(energy, sorted({0, rows, *(row for span in spans for row in span)}))
    found = np.full(rows, BETWEEN)
    spoken = []
    for start, end in spans:
        inside = np.arange(start, end)[~silent[start:end]]
        if not len(inside):
            continue
        found[inside] = INSIDE
        found[inside[:EDGE_ROWS]] = found[inside[-EDGE_ROWS:]] = EDGE
        spoken += [inside[0], inside[-1]]
    found[: min(spoken, default=rows)] = BEFORE
    found[max(spoken, default=rows) + 1 :] = AFTER
    return found
