"""Clips of audio with their texts as memory maps: log-mel features of the frames that audio covers, without padding.

A corpus of clips is a folder that `l0drop.data.prepare_clips` writes:

    features  frames.offsets    float16, frame by frame, of all clips end to end
    covered                     frames of each clip that audio covers; up to three more at its end still see audio
    peak                        float32, the largest feature of each clip
    target.ids  target.offsets  the tokens of its text, without prompt and EOS
    text.bytes  text.offsets    its text
    teacher.values  teacher.ids optional: a teacher's log-probabilities of its most likely tokens, for each target token
                                and EOS, with `teacher.top` of the request in a row
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from l0drop.data.corpus import Summary, check_columns, map_column, read_manifest, request_digest
from l0drop.data.text import CorpusError

SILENCE = -1.5
"""The feature of silence, (log10(1e-10) + 4) / 4."""
RANGE = 2.0
"""The largest difference between features of one window, 8 / 4."""


class TopTokens(NamedTuple):
    """The most likely tokens of a teacher for each target token and EOS: log-probabilities and ids, [T + 1, top]."""

    values: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True, eq=False)
class Clip:
    """One clip, or several joined ones. features: [frames, mels], float16. ids: the tokens of its text."""

    features: np.ndarray
    covered: int
    peak: float
    ids: np.ndarray
    index: int
    teacher: "TopTokens | None" = None

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


def joined(clips: Sequence[Clip]) -> Clip:
    """Clips one after the other, as one. A teacher heard each of them alone; it ends after the last one only."""
    if len(clips) == 1:
        return clips[0]
    before = sum(len(clip.features) for clip in clips[:-1])
    return Clip(
        features=np.concatenate([clip.features for clip in clips]),
        covered=before + clips[-1].covered,
        peak=max(clip.peak for clip in clips),
        ids=np.concatenate([clip.ids for clip in clips]),
        index=clips[0].index,
        teacher=_joined_teacher(clips),
    )


def _joined_teacher(clips: Sequence[Clip]) -> TopTokens | None:
    parts = [clip.teacher for clip in clips if clip.teacher is not None]
    if not parts:
        return None
    columns = zip(*(TopTokens(part.values[:-1], part.ids[:-1]) for part in parts[:-1]), strict=True)
    before = [np.concatenate(column) for column in columns]
    return TopTokens(*(np.concatenate(pair) for pair in zip(before, parts[-1], strict=True)))


@dataclass(frozen=True, eq=False)
class ClipCorpus:
    """Prepared clips on disk; `corpus[i]` reads one."""

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    frames: np.ndarray = field(repr=False)
    """Stored frames of each clip."""
    target_lengths: np.ndarray = field(repr=False)
    """Tokens of each text, without prompt and EOS."""
    _columns: dict[str, np.ndarray] = field(repr=False)

    @classmethod
    def open(cls, folder: Path | str) -> "ClipCorpus":
        """Map a prepared folder; CorpusError if it is incomplete, was changed or holds text."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if "frames.offsets" not in manifest["columns"]:
            raise CorpusError(f"{folder}: holds text, not audio")
        columns = {name: map_column(folder / name, layout) for name, layout in manifest["columns"].items()}
        return cls(folder, manifest, np.diff(columns["frames.offsets"]), np.diff(columns["target.offsets"]), columns)

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
        first, last = self._columns["frames.offsets"][index : index + 2]
        start, end = self._columns["target.offsets"][index : index + 2]
        return Clip(
            features=self._columns["features"][first * self.mels : last * self.mels].reshape(-1, self.mels),
            covered=int(self._columns["covered"][index]),
            peak=float(self._columns["peak"][index]),
            ids=self._columns["target.ids"][start:end].astype(np.int64),
            index=index,
            teacher=self._teacher(int(start) + index, int(end) + index + 1),  # every clip has one more row, for EOS
        )

    def _teacher(self, first: int, last: int) -> TopTokens | None:
        top = self.top
        if top is None:
            return None
        values, ids = (self._columns[f"teacher.{name}"][first * top : last * top] for name in ("values", "ids"))
        return TopTokens(values.reshape(-1, top), ids.reshape(-1, top))

    def text(self, index: int) -> str:
        """The whole text of a clip."""
        start, end = self._columns["text.offsets"][index : index + 2]
        return self._columns["text.bytes"][start:end].tobytes().decode("utf-8")

    def __reduce__(self) -> tuple[Callable[[Path], "ClipCorpus"], tuple[Path]]:
        return ClipCorpus.open, (self.folder,)  # memory maps would be pickled as full copies

    def collate(self, clips: Sequence[Clip], *, packed: bool = False) -> dict[str, Any]:
        """Clips as tensors: input_features, attention_mask over frames, decoder_input_ids, labels, hints, index.

        The prompt is given to the decoder and has no labels. `source_tokens` counts the encoder rows that audio covers,
        one for two frames. With a teacher's distributions, `teacher_values` and `teacher_ids` [R, top] have one row per
        label, clip by clip.

        packed: instead of `input_features`, give `frames`, `lengths` and `floors`, from which `unpacked_windows` makes
        them on another device. They are smaller: without padding, and in float16.
        """
        prompt, end = self.prompt, self.eos
        longest = len(prompt) + max(len(clip.ids) for clip in clips)
        inputs = torch.full((len(clips), longest), end)
        labels = torch.full((len(clips), longest), -100)
        for row, clip in enumerate(clips):
            tokens = [*prompt, *clip.ids.tolist()]
            inputs[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, len(prompt) - 1 : len(tokens)] = torch.tensor([*tokens[len(prompt) :], end])
        covered = torch.tensor([clip.covered for clip in clips])
        mask = (torch.arange(self.window) < covered[:, None]).long()
        parts = [clip.teacher for clip in clips if clip.teacher is not None]
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
            "source_tokens": int(mask[:, ::2].sum()),
        }


def unpacked_windows(batch: dict[str, Any], frames: int, device: torch.device | str) -> dict[str, Any]:
    """A packed batch of `ClipCorpus.collate` with its windows, on this device."""
    parts = [batch[name].to(device, non_blocking=True) for name in ("frames", "lengths", "floors")]
    rest = {name: value for name, value in batch.items() if name not in ("frames", "lengths", "floors")}
    return {**rest, "input_features": windows(parts[0], parts[1], parts[2], frames)}
