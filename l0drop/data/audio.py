"""Audio files and arrays as mono samples at 16 kHz, and their log-mel features, as Whisper's extractor makes them.

Files are read by libsndfile: wav, flac, ogg (Vorbis and Opus), mp3 and others. Long files are read, mixed and resampled
in blocks, and features are computed in blocks, so memory holds samples and features, but no spectrum of the whole.
"""

import io
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l0drop.data.ogg import seconds_before_damage
from l0drop.extras import needed_for

RATE = 16_000
"""Samples per second of Whisper's audio."""
BLOCK_SECONDS = 60
"""Seconds that are resampled or transformed at once."""
BLOCK_VALUES = 1_000_000
"""Samples of all channels that are read from a file at once: a small compressed file may have many channels."""
SILENT = 1e-4
"""Audio whose samples all stay below this (-80 dB of full scale) is silent."""
LOUDEST = 1e10
"""Larger samples are no sound, and the squares of their spectrum would exceed float32. Full scale is 1."""

TRIM_FRAME = 160
"""Samples of the frames whose loudness decides what `trimmed` cuts: 10 ms."""
TRIM_MARGIN = 1600
"""Samples that `trimmed` leaves before and after the sound: 100 ms."""
UNKNOWN_LENGTH = 2**62
"""The number of samples that libsndfile announces where a header has none is larger."""
MOST_CHANNELS = 8
"""An array with more columns is taken for something else than samples."""

Samples = NDArray[np.float32]


class AudioError(ValueError):
    """A file or array that cannot be transcribed; the message begins with its name."""


@dataclass(frozen=True, eq=False)
class Audio:
    """One clip: mono samples at 16 kHz. `name` identifies it in messages."""

    name: str
    samples: Samples

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to hear: no samples, or none above -80 dB."""
        return not len(self.samples) or float(max(self.samples.max(), -self.samples.min())) < SILENT


def read_audio(file: str | Path) -> Audio:
    """The audio of a file, its channels mixed, at 16 kHz. Raises AudioError with the file's name."""
    name, path = str(file), Path(file)
    try:
        if not path.exists():
            raise AudioError(f"{name}: there is no such file")
        if not path.is_file():
            raise AudioError(f"{name}: is a {'folder' if path.is_dir() else 'device or pipe'}, not an audio file")
        with path.open("rb") as opened:
            if not opened.read(1):
                raise AudioError(f"{name}: is empty")
            damage = seconds_before_damage(opened)
        return Audio(name, _joined([*_read(name, name, damage)]))
    except OSError as error:
        raise AudioError(f"{name}: cannot be read ({error.strerror or error})") from error


def read_in_steps(content: bytes, name: str, most_seconds: float) -> Generator[None, None, Audio]:
    """The audio of a file's content, read in steps of one block: a small file may take long to decompress.

    Raises AudioError with `name`, also for more than `most_seconds`.
    """
    if not content:
        raise AudioError(f"{name}: is empty")
    damage = seconds_before_damage(io.BytesIO(content))
    parts = []
    for part in _read(io.BytesIO(content), name, damage, most_seconds):
        parts.append(part)
        yield
    return Audio(name, _joined(parts))


def _read(file: str | BinaryIO, name: str, damage: float | None, most_seconds: float = math.inf) -> Iterator[Samples]:
    """The samples of a file at 16 kHz, block by block.

    damage: the seconds of an Ogg file before its first damaged page, which libsndfile would skip.
    """
    with needed_for("reading audio files"):
        import soundfile
    try:
        with soundfile.SoundFile(file) as opened:
            if opened.frames >= UNKNOWN_LENGTH:
                raise AudioError(
                    f"{name}: its header does not say how long it is, as in FLAC that was written to a pipe; convert "
                    "it, for example with `ffmpeg -i FILE new.flac`"
                )
            if damage is not None:
                whole = opened.frames / opened.samplerate
                raise AudioError(f"{name}: is damaged after {damage:.1f} of {max(damage, whole):.1f} seconds")
            yield from _resampled(_mixed_blocks(opened, name, most_seconds), opened.samplerate)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{name}: cannot be read as audio ({error.error_string})") from None


def _mixed_blocks(opened: Any, name: str, most_seconds: float) -> Iterator[Samples]:
    """The mean of the channels in blocks. A file that ends before its announced length, or is too long, raises."""
    read, size = 0, max(1, BLOCK_VALUES // opened.channels)
    while True:
        block = opened.read(size, dtype="float32", always_2d=True)
        if not len(block):
            break
        mixed = block.mean(1, dtype=np.float32)
        _check_samples(mixed, name, opened.samplerate, read)
        read += len(block)
        if read > most_seconds * opened.samplerate:
            raise AudioError(f"{name}: is longer than {most_seconds:g} seconds")
        yield mixed
    if read < opened.frames:
        rate = opened.samplerate
        raise AudioError(f"{name}: is damaged after {read / rate:.1f} of {opened.frames / rate:.1f} seconds")


def _check_samples(samples: Samples, name: str, rate: int, before: int = 0) -> None:
    """Refuse samples that are no sound; `before`: the number of samples before these."""
    bad = ~(np.abs(samples) <= LOUDEST)
    if bad.any():
        first = int(bad.argmax())
        kind = "samples far beyond full scale, which is 1" if np.isfinite(samples[first]) else "NaN or infinite samples"
        raise AudioError(f"{name}: has {kind}, the first at {(before + first) / rate:.2f} seconds")


def _resampled(blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    """Blocks at 16 kHz, one per block and the rest."""
    if rate == RATE:
        yield from blocks
        return
    with needed_for("reading audio at a rate other than 16 kHz"):
        import soxr
    stream = soxr.ResampleStream(rate, RATE, 1, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, dtype=np.float32), last=True)


def _joined(parts: list[Samples]) -> Samples:
    """The parts as one array; each is freed when it is copied, so that a long recording is not in memory twice."""
    samples = np.empty(sum(map(len, parts)), dtype=np.float32)
    parts.reverse()
    filled = 0
    while parts:
        part = parts.pop()
        samples[filled : filled + len(part)] = part
        filled += len(part)
    return samples


def as_audio(values: Any, name: str, rate: int = RATE) -> Audio:
    """The audio of an array of samples, [T] or [T, channels], in floats between -1 and 1 or in integers."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "i":
        array = array / np.float32(np.iinfo(array.dtype).max + 1)
    elif array.dtype.kind != "f":
        raise AudioError(f"{name}: expected samples as floats or signed integers, got {array.dtype}")
    if array.ndim == 2 and array.shape[1] <= MOST_CHANNELS:
        array = array.mean(1)
    if array.ndim != 1:
        raise AudioError(f"{name}: expected samples [T] or [T, channels], got an array of shape {list(array.shape)}")
    if not isinstance(rate, int) or isinstance(rate, bool) or rate < 1:
        raise ValueError(f"sampling_rate: expected samples per second, got {rate!r}")
    samples = array.astype(np.float32)
    _check_samples(samples, name, rate)
    size = BLOCK_SECONDS * rate
    blocks = (samples[i : i + size] for i in range(0, len(samples), size))
    return Audio(name, _joined([*_resampled(blocks, rate)]))


def log_mel(samples: Samples, extractor: Any, *, padded: bool) -> Tensor:
    """[mels, frames], the features of Hugging Face's extractor for these samples.

    padded: with silence to one window of the extractor, as short clips are; otherwise one frame per 10 ms of audio.
    The spectrum is computed in blocks: frames are independent of each other up to the last step, which limits the
    dynamic range by the loudest frame.
    """
    if padded:
        samples = np.pad(samples, (0, max(0, int(extractor.n_samples) - len(samples))))
    size, hop = extractor.n_fft, extractor.hop_length
    frames, half = len(samples) // hop, size // 2
    window = torch.hann_window(size)
    filters = torch.from_numpy(extractor.mel_filters).float().T
    step = BLOCK_SECONDS * RATE // hop
    levels = torch.empty(filters.shape[0], frames)
    for start in range(0, frames, step):
        end = min(frames, start + step)
        first, last = start * hop - half, (end - 1) * hop + half
        block = samples[max(0, first) : last]
        before, after = max(0, -first), max(0, last - len(samples))
        if before or after:  # the spectrum at the edges is that of mirrored audio
            block = np.pad(block, (before, after), mode="reflect")
        spectrum = torch.stft(torch.from_numpy(block), size, hop, window=window, center=False, return_complex=True)
        levels[:, start:end] = (filters @ (spectrum.abs() ** 2)).clamp_min(1e-10).log10()
    return torch.maximum(levels, levels.max() - 8.0, out=levels).add_(4.0).div_(4.0)


def trimmed(clip: Audio, decibels: float) -> Audio:
    """The clip without its quiet beginning and end, but for 100 ms: frames this far below the loudest are quiet."""
    if not 0 < decibels < math.inf:
        raise ValueError(f"`trim`: expected decibels above 0, got {decibels:g}")
    if clip.is_silent:
        return clip
    power = row_power(clip.samples, TRIM_FRAME, -(-len(clip.samples) // TRIM_FRAME))
    loud = np.flatnonzero(power >= power.max() * 10 ** (-decibels / 10))
    start = max(0, int(loud[0]) * TRIM_FRAME - TRIM_MARGIN)
    end = min(len(clip.samples), (int(loud[-1]) + 1) * TRIM_FRAME + TRIM_MARGIN)
    return Audio(clip.name, clip.samples[start:end])


def row_power(samples: Samples, size: int, rows: int) -> NDArray[np.float64]:
    """[rows], the mean square of each run of `size` samples; beyond the end there is silence."""
    padded = np.zeros(size * rows)
    padded[: len(samples)] = samples[: size * rows]
    return (padded**2).reshape(rows, size).mean(1)
