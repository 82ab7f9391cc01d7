"""Which rows of a clip a gated Whisper drops: by energy, by position, in padding, inside and between words."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l0drop.data.audio import Audio, log_mel
from l0drop.data.spoken import SpokenClip
from l0drop.data.text import file_stamp
from l0drop.decoding.folder import fingerprint, locate_model
from l0drop.decoding.speech import ROW_SECONDS, SpeechModel, load_speech
from l0drop.models.whisper import FRAMES_PER_ROW
from l0drop.runs.analysis import Bin, Bins
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.provenance import provenance
from l0drop.runs.speech import ShownClip, SpeechAnalysis, TimedWord
from l0drop.study.analysis.dropped import Tally
from l0drop.study.analysis.subject import find_baseline
from l0drop.study.speech.source import audio_recipe, clips_to_score
from l0drop.study.speech.transcripts import Advance, read_clip
from l0drop.study.speech.words import PLACES, places, row_energy, word_times

TENTHS = 10
POSITIONS = 15
"""Bins of a window: 2 seconds each."""
AFTER_END = (0.1, 0.5, 2.0, 5.0, 10.0)
"""The last second of each bin of padding, counted from the end of the audio."""
DRAWN = 3
"""Clips to draw if none are named."""
MELS, LEVELS = 40, 99
"""The resolution of a stored spectrogram."""


@dataclass
class RowStudy:
    """Counts the dropped rows of windows of so many rows."""

    rows: int
    covered: Tally = field(default_factory=lambda: Tally.of(1))
    padding: Tally = field(default_factory=lambda: Tally.of(1))
    energy: Tally = field(default_factory=lambda: Tally.of(TENTHS))
    position: Tally = field(default_factory=lambda: Tally.of(POSITIONS))
    after_end: Tally = field(default_factory=lambda: Tally.of(len(AFTER_END) + 1))
    words: Tally = field(default_factory=lambda: Tally.of(len(PLACES)))

    def add(
        self, kept_N: NDArray[np.bool_], energy: NDArray[np.float64], place: NDArray[np.int64] | None = None
    ) -> None:
        """Add one window; `energy` and `place` are of its covered rows, which come first."""
        covered = len(energy)
        dropped, silence = ~kept_N[:covered], ~kept_N[covered:]
        self.covered.add(np.zeros(covered, dtype=np.int64), dropped)
        self.padding.add(np.zeros(len(silence), dtype=np.int64), silence)
        rank = np.argsort(np.argsort(energy, kind="stable"))
        self.energy.add(rank * TENTHS // covered, dropped)
        self.position.add(np.arange(covered) * POSITIONS // self.rows, dropped)
        self.after_end.add(np.searchsorted(AFTER_END, np.arange(len(silence)) * ROW_SECONDS, side="right"), silence)
        if place is not None:
            self.words.add(place, dropped)

    def by_energy(self) -> Bins:
        bins = [Bin(first=n / TENTHS, last=(n + 1) / TENTHS, **vars(self.energy.rate([n]))) for n in range(TENTHS)]
        return Bins("covered rows by tenth of their clip's energy, from quiet to loud", bins)

    def by_position(self) -> Bins:
        width = self.rows * ROW_SECONDS / POSITIONS
        bins = [
            Bin(first=n * width, last=(n + 1) * width, **vars(self.position.rate([n])))
            for n in range(POSITIONS)
            if self.position.seen[n]
        ]
        return Bins("covered rows by seconds in the window", bins)

    def by_distance(self) -> Bins:
        edges = itertools.pairwise((0.0, *AFTER_END, None))
        bins = [
            Bin(first=first or 0.0, last=last, **vars(self.after_end.rate([n])))
            for n, (first, last) in enumerate(edges)
            if self.after_end.seen[n]
        ]
        return Bins("padding by seconds after the end of the audio", bins)


@dataclass(frozen=True)
class SpeechAnalysisJob:
    """Which model to analyse, on which clips.

    audio: a list of clips (default: the test clips of the run's recipe). dense: the model whose words give the times
    (default: the start of fine-tuning); without one there are no figures on words. clips: from the start of the list.
    show: clips to draw, counted from 0 (default: the first three that can be drawn).
    """

    model: str
    audio: Path | None = None
    dense: str | None = None
    clips: int | None = None
    show: Sequence[int] = ()
    device: str | None = None

    def run(self, progress: Callable[[int], Advance] | None = None) -> SpeechAnalysis:
        """Measure."""
        model = load_speech(self.model, self.device)
        if not model.is_gated:
            raise ValueError(f"{self.model}: has no gates, so it drops nothing; give it as `baseline`")
        dense, left_out = self._dense(model)
        file, clips = clips_to_score(self._run, self.audio)
        clips = clips[: self.clips]
        if beyond := [number for number in self.show if number >= len(clips)]:
            raise ValueError(f"`show`: there are {len(clips)} clips, counted from 0; got {beyond[0]}")
        study = RowStudy(model.model.config.max_source_positions)
        advance = progress(len(clips)) if progress else lambda _: None
        shown: list[ShownClip] = []
        silent = longer = 0
        seconds = 0.0
        for number, clip in enumerate(clips):
            audio = read_clip(model, clip)
            advance(1)
            if audio.is_silent or model.is_long(audio):
                silent, longer = silent + audio.is_silent, longer + (not audio.is_silent)
                if number in self.show:
                    raise ValueError(f"`show`: clip {number} ({clip.name}) is silent or longer than one window")
                continue
            seconds += audio.seconds
            kept_N = _kept(model, audio)
            energy = row_energy(audio, model.covered_rows(audio))
            words = None if dense is None else word_times(dense, audio, {})
            study.add(kept_N, energy, None if words is None else places(words, energy))
            if number in self.show or (not self.show and len(shown) < DRAWN):
                shown.append(_shown(model, clip, audio, kept_N, words or []))
        if not seconds:
            raise ValueError(f"{file}: all of its clips are silent or longer than one window")
        return SpeechAnalysis(
            model=self.model,
            fingerprint=fingerprint(self.model, model.model),
            dense=None if dense is None else dense.name,
            audio=FileStamp(**file_stamp(file)),
            clips=len(clips),
            seconds=seconds,
            silent=silent,
            longer=longer,
            covered=study.covered.rate([0]),
            padding=study.padding.rate([0]),
            energy=study.by_energy(),
            position=study.by_position(),
            after_end=study.by_distance(),
            words={} if dense is None else {name: study.words.rate([n]) for n, name in enumerate(PLACES)},
            shown=shown,
            left_out=left_out,
            dtype=model.dtype,
            made_by=provenance(model.model.device),
        )

    def _dense(self, model: SpeechModel) -> tuple[SpeechModel | None, dict[str, str]]:
        """The model that gives the times of words, or why there is none."""
        name, why = find_baseline(self.model, audio_recipe(self._run), self.dense)
        if name is None:
            return None, {"words": f"the times of words need a dense model: {why}"}
        dense = load_speech(name, self.device)
        if dense.is_gated:
            raise ValueError(f"`baseline`: {name} should be a plain model without gates; name one")
        if not hasattr(dense.model.generation_config, "alignment_heads"):
            return None, {"words": f"{name} names no alignment heads in generation_config.json"}
        if dense.model.config.max_source_positions != model.model.config.max_source_positions:
            raise ValueError(f"`baseline`: {name} has windows of another length than {self.model}")
        return dense, {}

    @property
    def _run(self) -> Path | None:
        return locate_model(self.model)[1]


@torch.no_grad()
def _kept(model: SpeechModel, clip: Audio) -> NDArray[np.bool_]:
    """[N], the kept rows of a clip's window."""
    encoded = model.engine.encode(log_mel(clip.samples, model.extractor, padded=True)[None])
    kept: NDArray[np.bool_] = encoded.kept[0].cpu().numpy()
    return kept


def _shown(
    model: SpeechModel, clip: SpokenClip, audio: Audio, kept_N: NDArray[np.bool_], words: list[TimedWord]
) -> ShownClip:
    covered = model.covered_rows(audio)
    (transcript,) = model.decode([audio], model.settings({}))
    return ShownClip(
        line=clip.line,
        file=clip.name,
        seconds=audio.seconds,
        row_seconds=ROW_SECONDS,
        levels=_levels(log_mel(audio.samples, model.extractor, padded=True), covered),
        kept=kept_N[:covered].tolist(),
        words=words,
        text=transcript.text,
    )


def _levels(features: Any, rows: int) -> list[list[int]]:
    """[rows][mels], the features as means over each row's frames and neighbouring mels, from 0 to `LEVELS`."""
    part = features[:, : rows * FRAMES_PER_ROW]
    height = max(1, len(part) // MELS)
    pooled = torch.nn.functional.avg_pool2d(part[None], (height, FRAMES_PER_ROW), ceil_mode=True)[0].T
    low, high = float(pooled.min()), float(pooled.max())
    scaled = (pooled - low) / max(high - low, 1e-6) * LEVELS
    levels: list[list[int]] = scaled.round().int().tolist()
    return levels
