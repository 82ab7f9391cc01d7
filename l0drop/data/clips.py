"""Clips of audio with their texts as memory maps: log-mel features of the frames that audio covers, without padding.

A corpus of clips is a folder that `l0drop.data.prepare_clips` writes:

    features  frames.offsets    float16, frame by frame, of all clips end to end
    covered                     frames of each clip that audio covers; up to three more at its end still see audio
    peak                        float32, the largest feature of each clip
    target.ids  target.offsets  the tokens of its text, without prompt and EOS
    text.bytes  text.offsets    its text
    teacher.values  teacher.ids optional: a teacher's log-probabilities of its most likely tokens, for each target token
                                and EOS, with `teacher.top` of the request in a row
    timed.ids  timed.offsets    optional: the tokens of its text with times, none for a clip whose times are not known;
                                with a teacher also timed.teacher.values and timed.teacher.ids
    manifest.json               inputs, settings, counts and digests

Whisper's extractor pads a clip with silence to one window and limits the dynamic range: no feature is below the largest
one minus 2. Silence has the level 10⁻¹⁰, which is the feature -1.5. So all frames of padding have the one value
max(-1.5, peak - 2), and are not stored.

Clips are joined in the space of features. The limit of a joined window is that of its loudest clip, which is never
below the limits that its clips already have: so every frame is that of the joined audio, apart from the few that see
both sides of a seam.

Shapes: B clips, T tokens, N frames of a window, F frames of all clips, M mels; features are [mels, frames], stored as
[frames, mels].
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0drop.data.clip_targets import Target, TopTokens, complete_tokens, joined_targets
from l0drop.data.corpus import Summary, check_columns, map_column, read_manifest, request_digest
from l0drop.data.text import CorpusError
from l0drop.models.whisper import FRAMES_PER_ROW

SILENCE = -1.5
"""The feature of silence, (log10(1e-10) + 4) / 4."""
RANGE = 2.0
"""The largest difference between features of one window, 8 / 4."""


@dataclass(frozen=True, eq=False)
class Clip:
    """One clip, or several joined ones. features: [frames, mels], float16."""

    features: np.ndarray
    covered: int
    peak: float
    target: Target
    index: int

    @property
    def floor(self) -> np.float32:
        """The smallest feature of the window, and that of its padding."""
        return np.float32(max(SILENCE, self.peak - RANGE))

    def window(self, frames: int) -> np.ndarray:
        """[mels, frames], float32: the features of the clip, padded to one window."""
        features = torch.from_numpy(np.array(self.features))
        lengths, floors = torch.tensor([len(features)]), torch.tensor([float(self.floor)])
        return windows(features, lengths, floors, frames)[0].numpy()


def windows(features_FM: Tensor, lengths_B: Tensor, floors_B: Tensor, frames: int) -> Tensor:
    """[B, mels, frames], float32: clips that lie end to end, each padded to one window with its smallest feature."""
    device = features_FM.device
    position_N = torch.arange(frames, device=device)
    inside_BN = position_N < lengths_B[:, None]
    first_B1 = (lengths_B.cumsum(0) - lengths_B)[:, None]
    values_BNM = features_FM[torch.where(inside_BN, first_B1 + position_N, 0)]
    # rounding to float16 may have moved the floor; padding and the silence before it should be one value
    is_floor_BNM = (values_BNM <= floors_B.half()[:, None, None]) | ~inside_BN[:, :, None]
    return torch.where(is_floor_BNM, floors_B[:, None, None], values_BNM.float()).transpose(1, 2).contiguous()


def joined(clips: Sequence[Clip], frames: int, eos: int) -> Clip:
    """Clips one after the other, as one, in a window of this number of frames, in which the last one may not fit."""
    if len(clips) == 1:
        return clips[0]
    starts = first_frames([len(clip.features) for clip in clips])
    return Clip(
        features=np.concatenate([clip.features for clip in clips])[:frames],
        covered=min(frames, starts[-1] + clips[-1].covered),
        peak=max(clip.peak for clip in clips),
        target=joined_targets(
            [clip.target for clip in clips], [first_row(start) for start in starts], first_row(frames), eos
        ),
        index=clips[0].index,
    )


def first_frames(lengths: Sequence[int]) -> list[int]:
    """Where clips of these lengths begin if they are joined."""
    return [0, *itertools.accumulate(lengths[:-1])]


def first_row(frame: int) -> int:
    """The first encoder row that begins at this frame or later."""
    return -(-frame // FRAMES_PER_ROW)


@dataclass(frozen=True, eq=False)
class ClipCorpus:
    """Prepared clips on disk; `corpus[i]` reads one."""

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    frames: np.ndarray = field(repr=False)
    """Stored frames of each clip."""
    target_lengths: np.ndarray = field(repr=False)
    """Tokens of each text, without prompt and EOS."""
    timed_lengths: np.ndarray = field(repr=False)
    """Tokens of each text with times; 0 where times are not known."""
    _columns: dict[str, np.ndarray] = field(repr=False)

    @classmethod
    def open(cls, folder: Path | str) -> "ClipCorpus":
        """Map a prepared folder; CorpusError if it is incomplete, was changed or holds text."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if "frames.offsets" not in manifest["columns"]:
            raise CorpusError(f"{folder}: holds text, not audio")
        columns = {name: map_column(folder / name, layout) for name, layout in manifest["columns"].items()}
        frames, targets = (np.diff(columns[f"{name}.offsets"]) for name in ("frames", "target"))
        timed = np.diff(columns["timed.offsets"]) if "timed.offsets" in columns else np.zeros_like(targets)
        return cls(folder, manifest, frames, targets, timed, columns)

    @property
    def summary(self) -> Summary:
        return Summary(**self.manifest["summary"])

    @property
    def made_from(self) -> str:
        """A digest of the audio, the texts and the settings; file paths do not count."""
        return request_digest(self.manifest)

    @property
    def window(self) -> int:
        """Frames of one window."""
        return int(self.manifest["request"]["features"]["window"])

    @property
    def mels(self) -> int:
        return int(self.manifest["request"]["features"]["mels"])

    @property
    def generation(self) -> dict[str, Any]:
        """The settings with which Whisper's generate gives such texts."""
        return dict(self.manifest["request"]["targets"]["generation"])

    @property
    def prompt(self) -> list[int]:
        return list(self.manifest["request"]["targets"]["prompt"])

    @property
    def timed_prompt(self) -> list[int]:
        """The prompt of a text with times."""
        return self.prompt[:-1]

    @property
    def first_time(self) -> int:
        """The token of the time 0; it follows the one that asks for no times, the last of the prompt."""
        return self.prompt[-1] + 1

    @property
    def top(self) -> int | None:
        """The number of stored tokens of the teacher's distributions; None without them."""
        teacher = self.manifest["request"].get("teacher")
        return None if teacher is None else int(teacher["top"])

    @property
    def eos(self) -> int:
        return int(self.manifest["request"]["targets"]["eos"])

    def check(self) -> None:
        """Raise CorpusError if a file is not the one that was written; it reads all of them."""
        check_columns(self.folder, self.manifest)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Clip:
        return self.clip(index)

    def clip(self, index: int, *, timed: bool = False) -> Clip:
        """One clip; timed: with the text that has times."""
        first, last = self._columns["frames.offsets"][index : index + 2]
        return Clip(
            features=self._columns["features"][first * self.mels : last * self.mels].reshape(-1, self.mels),
            covered=int(self._columns["covered"][index]),
            peak=float(self._columns["peak"][index]),
            target=self._timed_target(index) if timed else self._target(index),
            index=index,
        )

    def joined(self, parts: Sequence[int], *, timed: bool = False) -> Clip:
        """Clips one after the other, as one; timed: with times. The last one may go beyond the end of the window."""
        return joined([self.clip(part, timed=timed) for part in parts], self.window, self.eos)

    def timed_tokens(self, parts: Sequence[int]) -> int:
        """The number of tokens of joined clips with times, without prompt and EOS; it needs no features."""
        starts = first_frames([int(self.frames[part]) for part in parts])
        rows = first_row(self.window) - first_row(starts[-1])
        last = self._timed_ids(parts[-1])
        before = sum(int(self.timed_lengths[part]) for part in parts[:-1])
        return before + (complete_tokens(last, self.first_time, rows) if len(parts) > 1 else len(last))

    def _target(self, index: int) -> Target:
        start, end = (int(offset) for offset in self._columns["target.offsets"][index : index + 2])
        ids = self._columns["target.ids"][start:end].astype(np.int64)
        # every clip has one more row, for EOS
        return Target(ids, self._teacher("teacher", start + index, end + index + 1))

    def _timed_target(self, index: int) -> Target:
        start, end = (int(offset) for offset in self._columns["timed.offsets"][index : index + 2])
        if start == end:
            raise ValueError(f"{self.folder}: clip {index} has no times")
        before = int(np.count_nonzero(self.timed_lengths[:index]))
        teacher = self._teacher("timed.teacher", start + before, end + before + 1)
        return Target(self._timed_ids(index), teacher, self.first_time)

    def _timed_ids(self, index: int) -> np.ndarray:
        start, end = self._columns["timed.offsets"][index : index + 2]
        return self._columns["timed.ids"][start:end].astype(np.int64)

    def _teacher(self, name: str, first: int, last: int) -> TopTokens | None:
        top = self.top
        if top is None:
            return None
        values, ids = (self._columns[f"{name}.{part}"][first * top : last * top] for part in ("values", "ids"))
        return TopTokens(values.reshape(-1, top), ids.reshape(-1, top))

    def text(self, index: int) -> str:
        """The whole text of a clip."""
        start, end = self._columns["text.offsets"][index : index + 2]
        return self._columns["text.bytes"][start:end].tobytes().decode("utf-8")

    def __reduce__(self) -> tuple[Callable[[Path], "ClipCorpus"], tuple[Path]]:
        return ClipCorpus.open, (self.folder,)  # memory maps would be pickled as full copies

    def collate(self, clips: Sequence[Clip], *, packed: bool = False) -> dict[str, Any]:
        """Clips as tensors: input_features, attention_mask over frames, decoder_input_ids, labels, hints, index.

        The prompt is given to the decoder and has no labels; times have. `source_tokens` counts the encoder rows that
        audio covers, one for two frames. With a teacher's distributions, `teacher_values` and `teacher_ids` [R, top]
        have one row per label, clip by clip.

        packed: instead of `input_features`, give `frames`, `lengths` and `floors`, from which `unpacked_windows` makes
        them on another device. They are smaller: without padding, and in float16.
        """
        prompts = [self.prompt if clip.target.first_time is None else self.timed_prompt for clip in clips]
        longest = max(len(prompt) + len(clip.target.ids) for prompt, clip in zip(prompts, clips, strict=True))
        inputs = torch.full((len(clips), longest), self.eos)
        labels = torch.full((len(clips), longest), -100)
        for row, (prompt, clip) in enumerate(zip(prompts, clips, strict=True)):
            tokens = [*prompt, *clip.target.ids.tolist()]
            inputs[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, len(prompt) - 1 : len(tokens)] = torch.tensor([*tokens[len(prompt) :], self.eos])
        covered = torch.tensor([clip.covered for clip in clips])
        mask = (torch.arange(self.window) < covered[:, None]).long()
        parts = [clip.target.teacher for clip in clips if clip.target.teacher is not None]
        teacher = {
            "teacher_values": torch.from_numpy(np.concatenate([part.values for part in parts])).float(),
            "teacher_ids": torch.from_numpy(np.concatenate([part.ids for part in parts])).long(),
        } if parts else {}  # fmt: skip
        features_FM = torch.from_numpy(np.concatenate([clip.features for clip in clips]))
        lengths_B = torch.tensor([len(clip.features) for clip in clips])
        floors_B = torch.tensor([float(clip.floor) for clip in clips])
        frames = (
            {"frames": features_FM, "lengths": lengths_B, "floors": floors_B}
            if packed
            else {"input_features": windows(features_FM, lengths_B, floors_B, self.window)}
        )
        return {
            **teacher,
            **frames,
            "attention_mask": mask,
            "decoder_input_ids": inputs,
            "labels": labels,
            "hints": {},
            "index": torch.tensor([clip.index for clip in clips]),
            "source_tokens": int(mask[:, ::FRAMES_PER_ROW].sum()),
        }


def unpacked_windows(batch: dict[str, Any], frames: int, device: torch.device | str) -> dict[str, Any]:
    """A packed batch of `ClipCorpus.collate` with its windows, on this device."""
    parts = [batch[name].to(device, non_blocking=True) for name in ("frames", "lengths", "floors")]
    rest = {name: value for name, value in batch.items() if name not in ("frames", "lengths", "floors")}
    return {**rest, "input_features": windows(parts[0], parts[1], parts[2], frames)}
