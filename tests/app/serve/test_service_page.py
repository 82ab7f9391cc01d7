"""The commands in docs/service.md work as written, against a service."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import running
from tests.models import whispers
from tests.snippets import ROOT, blocks

PAGE = "docs/service.md"


def commands() -> list[str]:
    lines = [line for block in blocks(PAGE, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("curl ")]


def test_curl_lines_run_as_written(sparse: TextModel, whisper: SpeechModel, tmp_path: Path) -> None:
    assert len(commands()) > 10
    (tmp_path / "speech.wav").write_bytes(whispers.wav(0.4))
    with running([Served("sparse", sparse, pair=("en", "de")), ServedSpeech("tiny", whisper)]) as service:
        for line in commands():
            command = line.replace("http://127.0.0.1:8000", service.url)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if "srt" in line:
                assert " --> " in done.stdout
            elif "/metrics" not in line:
                answer = json.loads(done.stdout)
                assert "error" not in answer
        assert service.get("/").status_code == 200


def test_the_table_of_load_is_that_of_its_file() -> None:
    file = json.loads((ROOT / "docs/service/load.json").read_text(encoding="utf-8"))
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d,]+) ms \| ([\d,]+) ms \| ([\d,]+) ms \|$", page, re.M)
    shown = [[float(value.replace(",", "")) for value in row] for row in rows]
    assert shown == [list(row.values()) for row in file["load"]]
    assert round(shown[1][1] / shown[0][1], 1) == file["speed_up"]
    assert f"{file['memory_growth_mb']} MB" in page


@pytest.mark.parametrize("word", ["l0drop", "serve", "--host", "0.0.0.0"])
def test_the_dockerfile_starts_the_service(word: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (entry,) = [line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT")]
    assert word in json.loads(entry.removeprefix("ENTRYPOINT "))
    assert "USER l0drop" in dockerfile
