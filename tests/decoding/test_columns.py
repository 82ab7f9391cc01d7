"""Columns for bulk work, alone and on a local Ray whose worker is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from l0drop import L0DropConfig, load, sparsify
from l0drop.decoding.columns import DecodeColumns
from tests.models import whispers
from tests.snippets import ROOT
from tests.training import tiny

TEXTS = ["the dog sees a cat .", "", "a river knows the stone ."]


def test_columns_are_those_of_generate(sparse_folder: Path) -> None:
    decode = DecodeColumns(str(sparse_folder), "source", dtype="float64", device="cpu", num_beams=2)
    batch = {"source": np.array(TEXTS, dtype=object), "key": np.arange(3)}
    columns = decode(batch)
    wanted = load(sparse_folder, "cpu", "float64").generate(TEXTS, num_beams=2)
    assert columns["output"].tolist() == [result.text for result in wanted]
    assert columns["key"].tolist() == [0, 1, 2]
    assert np.isnan(columns["score"][1])
    assert columns["score"][[0, 2]].tolist() == pytest.approx([wanted[0].score, wanted[2].score])
    assert columns["kept_share"][0] == pytest.approx(len(wanted[0].kept) / wanted[0].source_tokens)
    with pytest.raises(ValueError, match="the rows have no column 'source', but text"):
        decode({"text": np.array(TEXTS)})


def test_columns_of_audio_files_are_those_of_transcribe(tmp_path: Path) -> None:
    made = whispers.spread_gates(sparsify(whispers.build(multilingual=False), L0DropConfig(gating="zero")))
    folder = whispers.save(made, tmp_path / "whisper")
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(whispers.wav(0.3 + 0.4 * number, number))
    soundfile.write(files[1], np.zeros(4000), 16_000)
    decode = DecodeColumns(str(folder), "path", dtype="float64", device="cpu", num_beams=2)
    columns = decode({"path": np.array([str(file) for file in files], dtype=object)})
    wanted = load(folder, "cpu", "float64").transcribe(files, num_beams=2)
    assert columns["output"].tolist() == [result.text for result in wanted]
    assert columns["output"][0]
    assert np.isnan(columns["score"][1])
    assert columns["score"][[0, 2]].tolist() == pytest.approx([wanted[0].score, wanted[2].score])
    assert columns["kept_share"].tolist() == pytest.approx([1 - wanted[0].sparsity, 0, 1 - wanted[2].sparsity])
    assert 0 < columns["kept_share"][0] < 1
    with pytest.raises(ValueError, match="there is no such file"):
        decode({"path": np.array(["missing.wav"])})


def workers(mark: str) -> list[int]:
    """The processes of our Ray's workers that decode."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = (process / "cmdline").read_bytes().startswith(b"ray::MapWorker")
            if is_worker and mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_ray_gives_the_lines_of_one_process_though_a_worker_is_killed(sparse_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'l0drop[ray]'")
    nouns = tiny.NOUNS
    texts = [f"the {nouns[i % len(nouns)]} sees the {nouns[i // len(nouns) % len(nouns)]} ." for i in range(20_000)]
    texts[7_777], texts[8_888] = "", "the dog\u2028sees a cat ."
    (tmp_path / "in.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    script = [sys.executable, str(ROOT / "examples" / "bulk_ray.py"), str(sparse_folder), str(tmp_path / "in.txt")]
    mark = f"L0DROP_MARK={tmp_path.name}-{os.getpid()}"
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "L0DROP_MARK": mark.partition("=")[2],
        "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    options = ["--workers", "2", "--dtype", "float64", "--beams", "1"]
    process = subprocess.Popen([*script, str(tmp_path / "out.jsonl"), *options], env=environment, cwd=tmp_path)
    try:
        until = time.monotonic() + 600  # Ray takes minutes to start on a busy machine
        while len(workers(mark)) < 2:
            assert process.poll() is None
            assert time.monotonic() < until, "Ray did not start its workers"
            time.sleep(0.1)
        time.sleep(8)  # in the middle: after loading the model
        killed, survivor = workers(mark)
        assert process.poll() is None
        os.kill(killed, signal.SIGKILL)
        while not set(workers(mark)) - {killed, survivor}:  # Ray starts another worker: there was work left
            assert process.poll() is None, "the worker was killed too late"
            time.sleep(0.05)
        assert process.wait(400) == 0
    finally:
        process.kill()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [line["line"] for line in lines] == list(range(1, 20_001))
    distinct = sorted(set(texts))
    results = load(sparse_folder, "cpu", "float64").generate(distinct, num_beams=1)
    wanted = dict(zip(distinct, results, strict=True))
    assert [line["text"] for line in lines] == [wanted[text].text for text in texts]
    assert lines[0]["score"] == pytest.approx(wanted[texts[0]].score, abs=1e-6)
    assert lines[7_777]["score"] is None
    assert killed != survivor
