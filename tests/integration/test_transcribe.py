"""`l0drop transcribe` through the command line."""

from pathlib import Path
from typing import Any

import pytest
import soundfile

from l0drop import L0DropConfig, load, sparsify
from tests.models import whispers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sparse Whisper, and three clips beside it."""
    made = whispers.spread_gates(sparsify(whispers.build(), L0DropConfig()))
    folder = whispers.save(made, tmp_path_factory.mktemp("transcribe") / "model")
    for name, seconds in (("a.wav", 0.4), ("b.flac", 1.3), ("c.ogg", 0.3)):
        soundfile.write(folder.parent / name, whispers.tone(seconds), 16_000)
    return folder


def test_files_to_lines_on_standard_output(l0drop: Any, folder: Path) -> None:
    files = [folder.parent / name for name in ("a.wav", "b.flac", "c.ogg")]
    ran = l0drop("transcribe", folder, *files, "--language", "en", "--beams", "2")
    expected = load(folder).transcribe(files, language="en", num_beams=2)
    assert (ran.code, ran.lines) == (0, [result.text for result in expected])
    assert "3 files in" in ran.errors
    assert "of the rows that audio covers dropped" in ran.errors


def test_a_missing_file_is_named_and_the_others_are_written(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    files = [folder.parent / "a.wav", tmp_path / "missing.wav", folder.parent / "c.ogg"]
    ran = l0drop("transcribe", folder, *files, "--language", "en", "-o", tmp_path / "out.txt")
    assert ran.code == 1
    assert "missing.wav: there is no such file" in ran.errors
    assert "1 failed" in ran.errors
    first, second, third = (tmp_path / "out.txt").read_text().splitlines()
    assert first
    assert third
    assert not second


def test_subtitles_in_a_folder_and_settings(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    files = [folder.parent / "a.wav", folder.parent / "b.flac"]
    ran = l0drop("transcribe", folder, *files, "--language", "de", "-o", f"{tmp_path}/out/", "--format", "vtt")
    assert ran.code == 0
    assert (tmp_path / "out" / "b.vtt").read_text().startswith("WEBVTT\n\n00:00:00.")
    ran = l0drop("transcribe", folder, *files, "--set", "num_beems=3")
    assert ran.code == 2
    assert "did you mean --beams?" in ran.errors
    ran = l0drop("translate", folder)
    assert ran.code == 2
    assert "use `l0drop.load`; on the command line: l0drop transcribe MODEL FILE ..." in ran.errors
