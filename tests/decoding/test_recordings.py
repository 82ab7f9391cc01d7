"""Many audio files: formats, folders, bad files among good ones, interruptions."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from l0drop import L0DropConfig, sparsify
from l0drop.decoding import recordings
from l0drop.decoding.destination import Destination
from l0drop.decoding.recordings import FileOutcome, Recordings, subtitles, transcribe_files, written
from l0drop.decoding.speech import Segment, SpeechModel, Transcript, load_speech
from l0drop.runs.job import SpeechSummary
from tests.models import whispers
from tests.models.whispers import tone

REPLACE = os.replace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    made = whispers.spread_gates(sparsify(whispers.build(), L0DropConfig(gating="mask")))
    return load_speech(whispers.save(made, tmp_path_factory.mktemp("whisper")))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Seven clips of one window or several."""
    paths = [tmp_path / f"clip{number}.wav" for number in range(7)]
    for number, path in enumerate(paths):
        soundfile.write(path, tone((0.4, 1.2)[number == 3], number), 16_000)
    return paths


def run(model: SpeechModel, files: list[Path], output: Path | None, **settings):  # type: ignore[no-untyped-def]
    options = {name: settings.pop(name) for name in ("resume", "restart") if name in settings}
    job = Recordings(tuple(files), Destination(output, **options), {"language": "en"}, **settings)
    return transcribe_files(job, lambda: model)


def test_lines_of_text_and_json(model: SpeechModel, files: list[Path], tmp_path: Path) -> None:
    expected = model.transcribe(files, language="en")
    done = run(model, files, tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().splitlines() == [result.text for result in expected]
    assert (done.totals.files, done.totals.failed, done.failures) == (7, 0, ())
    run(model, files, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == [result.text for result in expected]
    assert [line["file"] for line in lines] == [str(file) for file in files]
    assert lines[3]["segments"][1]["start"] > 0
    covered = sum(result.covered for result in expected)
    kept = sum(len(result.kept) for result in expected)
    summary = SpeechSummary.read(tmp_path / "out.jsonl.summary.json")
    assert summary.totals == done.totals
    assert summary.sparsity == pytest.approx(1 - kept / covered)
    assert summary.sparsity_of_all == pytest.approx(done.totals.sparsity_of_all)


def test_bad_files_do_not_stop_the_others(model: SpeechModel, files: list[Path], tmp_path: Path) -> None:
    def made(name: str, samples: np.ndarray, rate: int = 16_000, **settings: str) -> Path:
        soundfile.write(tmp_path / name, samples, rate, **settings)
        return tmp_path / name

    missing, empty, text = tmp_path / "missing.wav", tmp_path / "empty.wav", tmp_path / "text.mp3"
    empty.touch()
    text.write_text("no audio")
    bad_samples = tone(0.4)
    bad_samples[100] = np.inf
    damaged = made("damaged.flac", tone(3.0))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4000] = b"\x00" * 4000
    damaged.write_bytes(data)
    bad = [missing, empty, text, made("nan.wav", bad_samples, subtype="FLOAT"), damaged]
    odd = [
        made("silent.wav", np.zeros(8_000, np.float32)),
        made("none.wav", np.zeros(0, np.float32)),
        made("phone.wav", tone(0.4, rate=8_000), 8_000),
        made("stereo.flac", np.stack([tone(0.4, 1), tone(0.4, 2)], 1), 44_100, subtype="PCM_24"),
    ]
    mixed = [files[0], *bad[:2], *odd, files[1], *bad[2:], files[2]]
    said: list[str] = []
    job = Recordings(tuple(mixed), Destination(tmp_path / "out.jsonl"), {"language": "en"})
    done = transcribe_files(job, lambda: model, warn=said.append)
    lines = {Path(line["file"]).name: line for line in map(json.loads, (tmp_path / "out.jsonl").open())}
    assert len(lines) == len(mixed)
    assert [outcome.file for outcome in done.failures] == bad
    assert (done.totals.failed, done.totals.silent) == (5, 2)
    for path, message in zip(bad, said, strict=True):
        assert message.startswith(str(path))
        assert lines[path.name] == {"file": str(path), "error": message}
    assert lines["silent.wav"]["text"] == lines["none.wav"]["text"] == ""
    good = [*odd[2:], *files[:3]]
    for path, result in zip(good, model.transcribe(good, language="en"), strict=True):
        assert lines[path.name]["text"] == result.text
        assert result.text


def test_an_interrupted_job_is_resumed(
    model: SpeechModel, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "WINDOW_FILES", 2)
    run(model, files, tmp_path / "whole.jsonl")
    decode, calls = model.decode, []

    def stops(*arguments):  # type: ignore[no-untyped-def]
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(model, "decode", stops)
    with pytest.raises(KeyboardInterrupt):
        run(model, files, tmp_path / "out.jsonl")
    monkeypatch.setattr(model, "decode", decode)
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(ValueError, match="an interrupted run left"):
        run(model, files, tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match="other settings"):
        run(model, files[:-1], tmp_path / "out.jsonl", resume=True)
    done = run(model, files, tmp_path / "out.jsonl", resume=True)
    assert done.before.files >= 2
    assert done.totals.files == 7
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


@pytest.mark.parametrize("name", ["out.jsonl", "out.txt"])
def test_files_that_failed_before_an_interruption_are_tried_again(
    model: SpeechModel, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(recordings, "WINDOW_FILES", 2)
    run(model, files, tmp_path / f"whole-{name}")
    contents = {number: files[number].read_bytes() for number in (0, 1, 5)}
    files[0].unlink()
    files[1].write_bytes(b"no audio")
    files[5].unlink()
    decode = model.decode

    def stops(clips, settings):  # type: ignore[no-untyped-def]
        if any(clip.name == str(files[3]) for clip in clips):
            raise KeyboardInterrupt
        return decode(clips, settings)

    monkeypatch.setattr(model, "decode", stops)
    with pytest.raises(KeyboardInterrupt):
        run(model, files, tmp_path / name)
    monkeypatch.setattr(model, "decode", decode)
    files[0].write_bytes(contents[0])
    job = Recordings(tuple(files), Destination(tmp_path / name, resume=True), {"language": "en"})
    said: list[str] = []
    with monkeypatch.context() as patch:  # a crash at the very end loses nothing
        patch.setattr(
            "l0drop.decoding.partial.os.replace", lambda *paths: 1 / 0 if paths[1].name == name else REPLACE(*paths)
        )
        with pytest.raises(ZeroDivisionError):
            transcribe_files(job, lambda: model)
    assert not list(tmp_path.glob("*.copy"))
    done = transcribe_files(job, lambda: model, warn=said.append)
    assert [text.partition(":")[0] for text in said] == [str(files[1]), str(files[5])]
    assert (done.totals.files, done.totals.failed) == (7, 2)
    # a score's last digits depend on the batch, texts do not
    expected, found = (
        [json.loads(line).get("text") if name.endswith("jsonl") else line for line in file.read_text().splitlines()]
        for file in (tmp_path / f"whole-{name}", tmp_path / name)
    )
    assert [number for number in range(7) if found[number] != expected[number]] == [1, 5]
    assert [path.name for path in tmp_path.glob(f"{name}.partial*")] == []


def test_a_good_file_that_changed_is_still_refused(
    model: SpeechModel, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "WINDOW_FILES", 2)
    good, decode = files[0].read_bytes(), model.decode

    def stops(clips, settings):  # type: ignore[no-untyped-def]
        if any(clip.name == str(files[3]) for clip in clips):
            raise KeyboardInterrupt
        return decode(clips, settings)

    monkeypatch.setattr(model, "decode", stops)
    with pytest.raises(KeyboardInterrupt):
        run(model, files, tmp_path / "out.txt")
    files[0].write_bytes(good + bytes(2))
    with pytest.raises(ValueError, match="audio files changed since the interrupted run"):
        run(model, files, tmp_path / "out.txt", resume=True)


def test_one_missing_among_a_thousand(model: SpeechModel, files: list[Path], tmp_path: Path) -> None:
    names = [tmp_path / "many" / f"{number}.wav" for number in range(1_000)]
    names[0].parent.mkdir()
    for number, name in enumerate(names):
        if number != 700:
            name.symlink_to(files[number % 3])
    job = Recordings(tuple(names), Destination(tmp_path / "out.txt"), {"language": "en", "max_new_tokens": 2})
    done = transcribe_files(job, lambda: model)
    lines = (tmp_path / "out.txt").read_text().split("\n")
    assert len(lines) == 1_001
    assert [outcome.file for outcome in done.failures] == [names[700]]
    assert [number for number in range(1_000) if not lines[number]] == [700]


def test_a_folder_with_a_file_for_each(model: SpeechModel, files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "subtitles"
    folder.mkdir()
    run(model, files[:3], folder, format="srt")
    assert sorted(path.name for path in folder.iterdir()) == ["clip0.srt", "clip1.srt", "clip2.srt"]
    assert (folder / "clip0.srt").read_text().startswith("1\n00:00:00,")
    with pytest.raises(ValueError, match="has 3 of 7 transcripts already"):
        run(model, files, folder, format="srt")
    (folder / "clip0.srt").write_text("mine")
    done = run(model, files, folder, format="srt", resume=True)
    assert done.totals.files == 4
    assert (folder / "clip0.srt").read_text() == "mine"
    run(model, files, folder, format="srt", restart=True)
    assert (folder / "clip0.srt").read_text() != "mine"
    other = tmp_path / "other" / "clip0.wav"
    with pytest.raises(ValueError, match="would both be written to"):
        run(model, [files[0], other], folder, format="txt")
    with pytest.raises(ValueError, match=r"srt holds one recording; give a folder"):
        run(model, files, tmp_path / "all.srt")


def test_subtitles() -> None:
    parts = (Segment(0.0, 1.5, "One -->"), Segment(2.0, 2.0, ""), Segment(3661.25, 3662.0, "two"))
    transcript = Transcript("One two", parts)
    assert subtitles(transcript, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne ->\n\n2\n01:01:01,250 --> 01:01:02,000\ntwo\n"
    )
    assert subtitles(transcript, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne ->\n\n01:01:01.250 --> 01:01:02.000\ntwo\n"
    )


def test_subtitles_of_any_text_are_valid() -> None:
    transcript = Transcript("", (Segment(1.0, 1.0, "AT&T <i>"), Segment(2.0, 3.0, "<v Bob> &amp;")))
    assert subtitles(transcript, "vtt") == (
        "WEBVTT\n\n00:00:01.000 --> 00:00:01.020\nAT&amp;T &lt;i>\n\n"
        "00:00:02.000 --> 00:00:03.000\n&lt;v Bob> &amp;amp;\n"
    )
    assert subtitles(transcript, "srt").startswith("1\n00:00:01,000 --> 00:00:01,020\nAT&T <i>\n")


def test_bad_jobs_are_refused(files: list[Path]) -> None:
    with pytest.raises(ValueError, match="`files`: give at least one"):
        Recordings((), Destination())
    with pytest.raises(ValueError, match="`format`: expected one of txt, jsonl, srt, vtt"):
        Recordings(tuple(files), Destination(), format="doc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size"):
        Recordings(tuple(files), Destination(), batch_size=0)


def test_a_transcript_is_one_line_and_otherwise_unchanged(tmp_path: Path) -> None:
    found = Transcript("one\r\ntwo  three\n\n", (Segment(0.0, 1.0, "a\n\nb  c"),))
    assert written(FileOutcome(tmp_path / "a.wav", found), "txt") == "one two  three \n"
    assert subtitles(found, "srt").endswith("a b  c\n")
