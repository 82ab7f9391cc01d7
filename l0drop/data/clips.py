"""Clips of audio with their texts as memory maps: log-mel features of the frames that audio covers, without padding.

A corpus of clips is a folder that `l0drop.data.prepare_clips` writes:

    features  frames.offsets    float16, frame by frame, of all clips end to end
    covered                     frames of each clip that audio covers; up to three more at its end still see audio
    peak                        float32, the largest feature of each clip
    target.ids  target.offsets  the tokens of its text, without prompt and EOS
    text.bytes  text.offsets    its text
    manifest.json               inputs, settings, counts and digests

Whisper's extractor pads a clip with silence to one window and limits the dynamic range: no feature is below the largest
one minus 2. Silence has the level 10⁻¹⁰, which is the feature -1.5. So all frames of padding have the one value
max(-1.5, peak - 2), and are not stored.

Clips are joined in the space of features. The limit of a joined window is that of its loudest clip, which is never
below the limits that its clips already have: so every frame is that of the joined audio, apart from the few that see
both sides of a seam.

Shapes: B clips, T tokens; features are [mels, frames], stored as [frames, mels].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l0drop.data.corpus import Summary, check_columns, map_column, read_manifest, request_digest
from l0drop.data.text import CorpusError

SILENCE = -1.5
"""The feature of silence, (log10(1e-10) + 4) / 4."""
RANGE = 2.0
"""The largest difference between features of one window, 8 / 4."""


@dataclass(frozen=True, eq=False)
class Clip:
    """One clip, or several joined ones. features: [frames, mels], float16. ids: the tokens of its text."""

    features: np.ndarray
    covered: int
    peak: float
    ids: np.ndarray
    index: int

    def window(self, frames: int) -> np.ndarray:
        """[mels, frames], float32: the features of the clip, padded to one window."""
        floor = np.float32(max(SILENCE, self.peak - RANGE))
        values = self.features.T
        window = np.full((len(values), frames), floor, dtype=np.float32)
        # rounding to float16 may have moved the floor; padding and the silence before it should be one value
        window[:, : values.shape[1]] = np.where(values <= np.float16(floor), floor, values)
        return window


def joined(clips: Sequence[Clip]) -> Clip:
    """Clips one after the other, as one."""
    if len(clips) == 1:
        return clips[0]
    before = sum(len(clip.features) for clip in clips[:-1])
    return Clip(
        features=np.concatenate([clip.features for clip in clips]),
        covered=before + clips[-1].covered,
        peak=max(clip.peak for clip in clips),
        ids=np.concatenate([clip.ids for clip in clips]),
        index=clips[0].index,
    )


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
        )

    def text(self, index: int) -> str:
        """The whole text of a clip."""
        start, end = self._columns["text.offsets"][index : index + 2]
        return self._columns["text.bytes"][start:end].tobytes().decode("utf-8")

    def __reduce__(self) -> tuple[Callable[[Path], "ClipCorpus"], tuple[Path]]:
        return ClipCorpus.open, (self.folder,)  # memory maps would be pickled as full copies

    def collate(self, clips: Sequence[Clip]) -> dict[str, Any]:
        """Clips as tensors: input_features, attention_mask over frames, decoder_input_ids, labels, hints, index.

        The prompt is given to the decoder and has no labels. `source_tokens` counts the encoder rows that audio covers,
        one for two frames.
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
        return {
            "input_features": torch.from_numpy(np.stack([clip.window(self.window) for clip in clips])),
            "attention_mask": mask,
            "decoder_input_ids": inputs,
            "labels": labels,
            "hints": {},
            "index": torch.tensor([clip.index for clip in clips]),
            "source_tokens": int(mask[:, ::2].sum()),
        }
