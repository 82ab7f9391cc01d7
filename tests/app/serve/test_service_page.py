"""The commands in docs/service.md work as written, against a service."""

import json
import subprocess

import pytest

from l0drop.app.serve.models import Served
from l0drop.decoding.text import TextModel
from tests.app.serve.running import running
from tests.snippets import ROOT, blocks

PAGE = "docs/service.md"


def commands() -> list[str]:
    lines = [line for block in blocks(PAGE, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("curl ")]


def test_curl_lines_run_as_written(sparse: TextModel) -> None:
    assert len(commands()) > 10
    with running([Served("sparse", sparse, pair=("en", "de"))]) as service:
        for line in commands():
            command = line.replace("http://127.0.0.1:8000", service.url)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if "/metrics" not in line:
                answer = json.loads(done.stdout)
                assert "error" not in answer
        assert service.get("/").status_code == 200


@pytest.mark.parametrize("word", ["l0drop", "serve", "--host", "0.0.0.0"])
def test_the_dockerfile_starts_the_service(word: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (entry,) = [line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT")]
    assert word in json.loads(entry.removeprefix("ENTRYPOINT "))
    assert "USER l0drop" in dockerfile
