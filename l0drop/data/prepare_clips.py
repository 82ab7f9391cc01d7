"""Turn a list of audio files into a corpus of clips on disk."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from l0drop.data.audio import RATE, Audio, log_mel
from l0drop.data.clip_targets import TopTokens
from l0drop.data.clips import ClipCorpus
from l0drop.data.corpus import Summary, is_made_from, write_manifest
from l0drop.data.prepare import check_replaceable
from l0drop.data.speech_targets import SpeechTargets
from l0drop.data.text import CorpusError, Pair
from l0drop.data.whole import locked, whole_folder
from l0drop.models.whisper import FRAMES_PER_ROW

LAYOUT = {
    "features": "float16",
    "frames.offsets": "int64",
    "covered": "int32",
    "peak": "float32",
    "target.ids": "uint32",
    "target.offsets": "int64",
    "text.bytes": "uint8",
    "text.offsets": "int64",
}
READERS = min(8, os.cpu_count() or 1)
"""Threads that read audio and compute features."""
TEACHER_LAYOUT = {"teacher.values": "float16", "teacher.ids": "int32"}
TIMED_LAYOUT = {"timed.ids": "uint32", "timed.offsets": "int64"}


class ListedAudio(Protocol):
    """Audio files with texts: a list, or a list with a teacher's transcripts."""

    @property
    def file(self) -> Path: ...

    def __iter__(self) -> Iterator[Pair]: ...

    def read(self, pair: Pair, most_seconds: float) -> Audio: ...

    def timed(self, pair: Pair) -> str:
        """The text with times of a line that was read; blank if they are not known."""

    def inputs(self) -> list[dict[str, Any]]: ...


class ClipTeacher(Protocol):
    """A teacher's distributions over the next token."""

    @property
    def identity(self) -> dict[str, Any]:
        """The model and `top`, the number of tokens to store."""

    def __call__(self, features: Tensor, targets: Sequence["Given"]) -> list[TopTokens]:
        """For each target, log-probabilities of the most likely tokens after each token, from the last given one on."""


class Given(NamedTuple):
    """A clip's tokens without EOS; they begin with a prompt of `prompt` tokens."""

    tokens: list[int]
    prompt: int


def prepare_clips(
    audio: ListedAudio,
    targets: SpeechTargets,
    extractor: Any,
    out_dir: Path | str,
    *,
    max_target: int,
    timed: bool = False,
    teacher: ClipTeacher | None = None,
    progress: Callable[[int], None] | None = None,
    instead: Path | None = None,
) -> ClipCorpus:
    """Write features and target tokens into `out_dir`, or open the corpus there if it was made from the same audio.

    If the folder `instead` holds such a corpus, it is opened and nothing is written. Lines without a file or without a
    text are skipped and counted; a file that cannot be read, or exceeds one window, raises CorpusError with its line.
    Texts of more than `max_target` tokens, EOS included, are cut. `timed`: texts with times are stored too, but for
    those that exceed `max_target`. `teacher`: its distributions are stored. `progress` receives the number of lines
    read so far.
    """
    out_dir = Path(out_dir)
    request: dict[str, Any] = {
        "inputs": audio.inputs(),
        "features": feature_settings(extractor),
        "targets": targets.fingerprint,
        "limits": {"target": max_target},
    }
    if teacher is not None:
        request["teacher"] = teacher.identity
    if timed:
        request["timestamps"] = True
    if instead is not None and is_made_from(ClipCorpus.open, instead, request):
        return ClipCorpus.open(instead)
    if not is_made_from(ClipCorpus.open, out_dir, request):
        with locked(out_dir):
            if not is_made_from(
                ClipCorpus.open, out_dir, request
            ):  # another process may have written it while this one waited
                check_replaceable(out_dir)
                with whole_folder(out_dir) as partial:
                    _write(partial, audio, targets, extractor, request, max_target - 1, teacher, progress)
    return ClipCorpus.open(out_dir)


def feature_settings(extractor: Any) -> dict[str, int]:
    """The settings of a feature extractor that features depend on; `window`: frames of one window."""
    return {
        "mels": int(extractor.feature_size),
        "window": round(extractor.n_samples) // int(extractor.hop_length),
        "hop": int(extractor.hop_length),
        "fft": int(extractor.n_fft),
    }


def covered_frames(samples: int, extractor: Any) -> tuple[int, int]:
    """The frames that cover these samples, and those that see any of them: a frame reaches half a window around it."""
    hop, half, window = extractor.hop_length, extractor.n_fft // 2, feature_settings(extractor)["window"]
    return min(window, max(1, samples // hop)), min(window, math.ceil((samples + half) / hop))


class _Columns:
    """The files of a corpus, to which arrays are appended."""

    def __init__(self, folder: Path, files: ExitStack, layout: dict[str, str]) -> None:
        self._files: dict[str, IO[bytes]] = {name: files.enter_context((folder / name).open("wb")) for name in layout}
        self.lengths, self._layout = dict.fromkeys(layout, 0), layout

    def append(self, name: str, values: Any) -> None:
        array = np.asarray(values).astype(self._layout[name])
        array.tofile(self._files[name])
        self.lengths[name] += array.size


def _read_ahead(
    audio: ListedAudio, seconds: float, extractor: Any
) -> Iterator[tuple[Pair, tuple[Audio, Tensor] | None]]:
    """Each line with its audio and features, None if a part of it is missing; threads read the lines that follow."""

    def heard(pair: Pair) -> tuple[Audio, Tensor]:
        clip = audio.read(pair, seconds)
        return clip, log_mel(clip.samples, extractor, padded=True)

    waiting: deque[tuple[Pair, Future[tuple[Audio, Tensor]] | None]] = deque()
    with ThreadPoolExecutor(READERS) as readers:
        try:
            for pair in audio:
                missing = pair.is_blank or pair.is_one_sided
                waiting.append((pair, None if missing else readers.submit(heard, pair)))
                if len(waiting) > 2 * READERS:
                    yield _arrived(*waiting.popleft())
            while waiting:
                yield _arrived(*waiting.popleft())
        finally:
            readers.shutdown(cancel_futures=True)


def _arrived(pair: Pair, future: Future[tuple[Audio, Tensor]] | None) -> tuple[Pair, tuple[Audio, Tensor] | None]:
    return pair, None if future is None else future.result()


def _write(
    folder: Path,
    audio: ListedAudio,
    targets: SpeechTargets,
    extractor: Any,
    request: dict[str, Any],
    max_tokens: int,
    teacher: ClipTeacher | None,
    progress: Callable[[int], None] | None,
) -> None:
    summary, mels, timed = Summary(), request["features"]["mels"], "timestamps" in request
    seconds = round(extractor.n_samples) / RATE
    layout = _layout(timed, teacher is not None)
    with ExitStack() as files:
        columns = _Columns(folder, files, layout)
        for name in layout:
            if name.endswith(".offsets"):
                columns.append(name, [0])
        for pair, heard in _read_ahead(audio, seconds, extractor):
            summary.lines += 1
            if heard is None:
                summary.blank += pair.is_blank
                summary.one_sided += pair.is_one_sided
            else:
                clip, features = heard
                (ids,) = targets.encode([pair.target or ""])
                covered, seen = covered_frames(len(clip.samples), extractor)
                columns.append("features", features[:, :seen].T.contiguous().numpy().ravel())
                columns.append("frames.offsets", [columns.lengths["features"] // mels])
                columns.append("covered", [covered])
                columns.append("peak", [float(features.max())])
                columns.append("target.ids", ids[:max_tokens])
                columns.append("target.offsets", [columns.lengths["target.ids"]])
                columns.append("text.bytes", np.frombuffer((pair.target or "").encode(), np.uint8))
                columns.append("text.offsets", [columns.lengths["text.bytes"]])
                decoded = {"teacher": Given([*targets.prompt, *ids[:max_tokens]], len(targets.prompt))}
                if timed:
                    timed_ids = _timed_ids(audio, pair, targets, seen, max_tokens)
                    columns.append("timed.ids", timed_ids)
                    columns.append("timed.offsets", [columns.lengths["timed.ids"]])
                    if timed_ids:
                        decoded["timed.teacher"] = Given([*targets.timed_prompt, *timed_ids], len(targets.timed_prompt))
                if teacher is not None:
                    for name, found in zip(decoded, teacher(features, list(decoded.values())), strict=True):
                        columns.append(f"{name}.values", found.values.ravel())
                        columns.append(f"{name}.ids", found.ids.ravel())
                summary.pairs += 1
                summary.truncated_target += len(ids) > max_tokens
                summary.source_tokens += math.ceil(covered / FRAMES_PER_ROW)
                summary.target_tokens += min(len(ids), max_tokens) + 1
            if progress:
                progress(summary.lines)
    if not summary.pairs:
        raise CorpusError(f"{audio.file}: none of the {summary.lines} lines has both a file and a text")
    if timed and not columns.lengths["timed.ids"]:
        raise CorpusError(f"{audio.file}: none of its texts has times; set data.timestamps: 0")
    write_manifest(folder, request, summary, {name: (dtype, columns.lengths[name]) for name, dtype in layout.items()})


def _layout(timed: bool, taught: bool) -> dict[str, str]:
    """The columns of a corpus and their types."""
    layout = LAYOUT | (TIMED_LAYOUT if timed else {})
    for prefix in ("", "timed.") if timed else ("",):
        layout |= {f"{prefix}{name}": dtype for name, dtype in TEACHER_LAYOUT.items()} if taught else {}
    return layout


def _timed_ids(audio: ListedAudio, pair: Pair, targets: SpeechTargets, frames: int, max_tokens: int) -> list[int]:
    """The tokens of a line's text with times; none if it has no times, or more than `max_tokens`."""
    try:
        ids = targets.encode_timed(audio.timed(pair), frames // FRAMES_PER_ROW)
    except ValueError as error:
        raise CorpusError(f"{audio.file}, line {pair.line}: text with times: {error}") from error
    return ids if len(ids) <= max_tokens else []
