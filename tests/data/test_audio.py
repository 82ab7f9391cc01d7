"""Audio files and arrays: formats, rates, channels, bad files, and the features of Hugging Face's extractor."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperFeatureExtractor

from l0drop.data.audio import Audio, AudioError, as_audio, log_mel, read_audio, read_in_steps
from l0drop.data.ogg import page_checksum
from tests.models.whispers import tone


def written(folder: Path, samples: np.ndarray, rate: int = 16_000, name: str = "a.wav", **settings: str) -> Path:
    soundfile.write(folder / name, samples, rate, **settings)
    return folder / name


@pytest.mark.parametrize(("name", "settings", "error"), [
    ("a.wav", {}, 1e-4),
    ("a.wav", {"subtype": "PCM_24"}, 1e-6),
    ("a.flac", {}, 1e-4),
    ("a.ogg", {"format": "OGG", "subtype": "VORBIS"}, 0.2),
    ("a.mp3", {}, 0.2),
])  # fmt: skip
def test_formats(tmp_path: Path, name: str, settings: dict[str, str], error: float) -> None:
    sound = tone(1.5)
    audio = read_audio(written(tmp_path, sound, name=name, **settings))
    assert audio.seconds == pytest.approx(1.5, abs=0.1)
    length = min(len(sound), len(audio.samples))
    assert float(np.abs(audio.samples[:length] - sound[:length]).max()) < error
    assert audio.samples.dtype == np.float32


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled(tmp_path: Path, rate: int) -> None:
    """A tone below half of both rates stays the same tone, in a file of several blocks."""
    time = np.arange(round(70.3 * rate)) / rate
    sound = (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    audio = read_audio(written(tmp_path, sound, rate))
    assert audio.seconds == pytest.approx(70.3, abs=1e-3)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(audio.samples)) / 16_000)
    inside = slice(800, -800)
    assert float(np.abs(audio.samples[inside] - expected[inside]).max()) < 1e-3


def test_channels_are_mixed(tmp_path: Path) -> None:
    left, right = tone(0.5, 1), tone(0.5, 2)
    audio = read_audio(written(tmp_path, np.stack([left, right], 1), subtype="FLOAT"))
    np.testing.assert_allclose(audio.samples, (left + right) / 2, atol=1e-6)


def test_arrays() -> None:
    sound = tone(0.5)
    np.testing.assert_array_equal(as_audio(sound, "x").samples, sound)
    np.testing.assert_array_equal(as_audio(torch.from_numpy(sound), "x").samples, sound)
    np.testing.assert_allclose(as_audio((sound * 32768).astype(np.int16), "x").samples, sound, atol=1e-4)
    stereo = (np.stack([sound, sound], 1) * 32768).astype(np.int16)
    np.testing.assert_allclose(as_audio(stereo, "x").samples, sound, atol=1e-4)
    assert as_audio(tone(1.0, rate=8_000), "x", 8_000).seconds == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(AudioError, match=r"audio\[3\]: expected samples \[T\] or \[T, channels\], got .* \[2, 50\]"):
        as_audio(np.zeros((2, 50), np.float32), "audio[3]")
    with pytest.raises(AudioError, match="x: expected samples as floats or signed integers, got uint8"):
        as_audio(np.zeros(50, np.uint8), "x")
    with pytest.raises(ValueError, match="sampling_rate: expected samples per second, got 0"):
        as_audio(sound, "x", 0)


def test_silence() -> None:
    assert Audio("x", np.zeros(0, np.float32)).is_silent
    assert Audio("x", np.full(16_000, 5e-5, np.float32)).is_silent
    assert not Audio("x", tone(0.1)).is_silent


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"missing\.wav: there is no such file"):
        read_audio(tmp_path / "missing.wav")
    (tmp_path / "empty.wav").touch()
    with pytest.raises(AudioError, match=r"empty\.wav: is empty"):
        read_audio(tmp_path / "empty.wav")
    (tmp_path / "text.wav").write_text("This is not audio.")
    with pytest.raises(AudioError, match=r"text\.wav: cannot be read as audio"):
        read_audio(tmp_path / "text.wav")
    sound = tone(1.0)
    sound[12_000] = np.nan
    with pytest.raises(AudioError, match=r"a\.wav: has NaN or infinite samples, the first at 0\.75 seconds"):
        read_audio(written(tmp_path, sound, subtype="FLOAT"))
    with pytest.raises(AudioError, match=r"x: has NaN or infinite samples, the first at 0\.75"):
        as_audio(sound, "x")
    with pytest.raises(AudioError, match=r"x: has NaN or infinite samples, the first at 0\.25"):
        as_audio(sound, "x", 48_000)
    sound[12_000] = 1e30
    with pytest.raises(AudioError, match=r"a\.wav: has samples far beyond full scale, which is 1, the first at 0\.75"):
        read_audio(written(tmp_path, sound, subtype="FLOAT"))
    no_samples = read_audio(written(tmp_path, np.zeros(0, np.float32), name="none.wav"))
    assert no_samples.is_silent


def test_a_file_that_is_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, tone(5.0), name="a.flac")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = b"\x00" * 4000
    file.write_bytes(data)
    with pytest.raises(AudioError, match=r"a\.flac: (is damaged after \d\.\d of 5\.0 seconds|cannot be read as audio)"):
        read_audio(file)


def test_a_folder_and_a_name_that_no_file_can_have_are_named(tmp_path: Path) -> None:
    """They fail as other files do, so that a job over many files goes on."""
    with pytest.raises(AudioError, match=r": is a folder, not an audio file"):
        read_audio(tmp_path)
    with pytest.raises(AudioError, match=r"aaa\.wav: cannot be read \(File name too long\)"):
        read_audio(tmp_path / f"{'a' * 300}.wav")


def test_flac_of_unknown_length_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, tone(1.0), name="a.flac")
    data = bytearray(file.read_bytes())
    data[21] &= 0xF0  # STREAMINFO begins at byte 8; the last 36 bits before its checksum count the samples
    data[22:26] = bytes(4)
    file.write_bytes(data)
    with pytest.raises(AudioError, match=r"a\.flac: its header does not say how long it is"):
        read_audio(file)


OGG = {"a.ogg": "VORBIS", "a.opus": "OPUS"}


@pytest.mark.parametrize("name", OGG)
def test_ogg_that_is_damaged_or_cut_is_named(tmp_path: Path, name: str) -> None:
    """libsndfile skips damaged pages without an error, and takes the beginning of a file for all of it."""
    file = written(tmp_path, tone(20.0), name=name, format="OGG", subtype=OGG[name])
    data = file.read_bytes()
    assert read_audio(file).seconds == pytest.approx(20.0, abs=0.1)
    half = len(data) // 2
    for bad in (
        data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        data[:half],
        data[: data.rindex(b"OggS") + 20],
        without_a_page(data),
    ):
        file.write_bytes(bad)
        with pytest.raises(AudioError, match=rf"{name}: is damaged after \d+\.\d of \d+\.\d seconds"):
            read_audio(file)
        with pytest.raises(AudioError, match=r"upload: is damaged after"):
            [*read_in_steps(bad, "upload", 60)]
    file.write_bytes(data + b"TAG" + bytes(125))
    assert read_audio(file).seconds == pytest.approx(20.0, abs=0.1)


def without_a_page(data: bytes) -> bytes:
    """The file without the last page but one."""
    last = data.rindex(b"OggS")
    return data[: data.rindex(b"OggS", 0, last)] + data[last:]


def test_the_checksum_of_ogg_pages() -> None:
    """The table-free definition: polynomial 0x04C11DB7, the highest bit first."""
    page = b"OggS" + bytes(range(18)) + b"\xff\xff\xff\xff" + bytes(range(50))
    register = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        register ^= byte << 24
        for _ in range(8):
            register = (register << 1 ^ (0x04C11DB7 if register >> 31 else 0)) & 0xFFFFFFFF
    assert page_checksum(page) == register


def test_samples_are_in_memory_once(tmp_path: Path) -> None:
    """The blocks of a long file are freed while they are joined."""
    rate, blocks = 16_000, 12
    file = written(tmp_path, np.tile(tone(60.0), blocks), rate)
    tracemalloc.start()
    audio = read_audio(file)
    assert not audio.is_silent
    features = log_mel(audio.samples, WhisperFeatureExtractor(feature_size=80), padded=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert features.shape[1] == 100 * 60 * blocks
    assert peak < 2.2 * audio.samples.nbytes


@pytest.mark.parametrize("seconds", [0.3, 7.0, 30.0])
def test_features_of_a_window_are_the_extractors(seconds: float) -> None:
    extractor, sound = WhisperFeatureExtractor(feature_size=80), tone(seconds)
    expected = extractor(sound, sampling_rate=16_000, return_tensors="pt").input_features[0]
    torch.testing.assert_close(log_mel(sound, extractor, padded=True), expected, atol=1e-5, rtol=0)


def test_features_of_a_long_recording_are_the_extractors() -> None:
    extractor, sound = WhisperFeatureExtractor(feature_size=80), tone(150.007)
    arguments = {"truncation": False, "padding": "longest", "return_tensors": "pt"}
    expected = extractor(sound, sampling_rate=16_000, **arguments).input_features[0]
    torch.testing.assert_close(log_mel(sound, extractor, padded=False), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_three_hours(tmp_path: Path) -> None:
    file = tmp_path / "long.wav"
    minute = tone(60.0, rate=8_000)
    with soundfile.SoundFile(file, "w", 8_000, 1) as opened:
        for _ in range(180):
            opened.write(minute)
    audio = read_audio(file)
    assert audio.seconds == pytest.approx(10_800, abs=0.01)
    features = log_mel(audio.samples, WhisperFeatureExtractor(feature_size=80), padded=False)
    assert features.shape == (80, 1_080_000)
    assert bool(features.isfinite().all())
