"""The commands in docs/service.md and in the Dockerfile work as written."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import process, running
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


@pytest.fixture(scope="module")
def dockerfile() -> dict[str, list[str]]:
    """The arguments of every instruction, by its name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, arguments = line.split(maxsplit=1)
            found.setdefault(name, []).append(arguments)
    return found


def test_the_files_that_the_image_copies_make_the_package(dockerfile: dict[str, list[str]], tmp_path: Path) -> None:
    not_ignored = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    image = tmp_path / "image"
    image.mkdir()
    for arguments in dockerfile["COPY"]:
        *names, target = arguments.split()
        for name in names:
            assert name in not_ignored
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, image / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, image / target)
    (install,) = [arguments for arguments in dockerfile["RUN"] if "pip install" in arguments]
    assert "--constraint constraints.txt '.[audio,serve]'" in install
    assert (image / "constraints.txt").is_file()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(image)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert "l0drop/app/serve/page.html" in files.namelist()


def test_the_commands_of_the_image_start_and_check_the_service(
    dockerfile: dict[str, list[str]], sparse_folder: Path, tmp_path: Path
) -> None:
    assert dockerfile["USER"] == ["l0drop"]
    program, serve, *options = json.loads(dockerfile["ENTRYPOINT"][0])
    assert (program, serve, options) == ("l0drop", "serve", ["--host", "0.0.0.0", "--port", "8000"])
    assert dockerfile["EXPOSE"] == ["8000"]
    check = json.loads(dockerfile["HEALTHCHECK"][0].partition("CMD ")[2])
    assert check[0] == "python"
    with process(sparse_folder, tmp_path / "log", "--host", "0.0.0.0", keys="a-long-secret") as (url, _):
        command = [sys.executable, *(part.replace("http://127.0.0.1:8000", url) for part in check[1:])]
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        assert httpx.post(url + "/v1/generate", json={"text": "x"}).status_code == 401
        authorized = {"Authorization": "Bearer a-long-secret"}
        assert httpx.post(url + "/v1/generate", json={"text": "x"}, headers=authorized).status_code == 200
    assert subprocess.run(command, check=False, timeout=60, stderr=subprocess.DEVNULL).returncode == 1
