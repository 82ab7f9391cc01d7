"""A model with a custom gate on the command line: `l0drop --import MODULE ...`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT

MODULE = """
import torch
from l0drop import Gate, Gates, register_gate


@register_gate("every_other")
class EveryOther(Gate):
    def forward(self, encodings, mask, input_ids=None, hints=None):
        return Gates((mask & (mask.cumsum(1) % 2 == 1)).to(torch.float32))
"""
SAVE = """
import sys
import my_gates
from transformers import AutoModelForSeq2SeqLM
from l0drop import L0DropConfig, sparsify

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
sparsify(model, L0DropConfig(gate="every_other")).save_pretrained(sys.argv[2])
"""


@pytest.fixture(scope="module")
def folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with my_gates.py and a model that needs it."""
    work = tmp_path_factory.mktemp("custom-gate")
    (work / "my_gates.py").write_text(MODULE)
    run(work, "-c", SAVE, str(baseline / "model"), "model", check=True, PYTHONPATH=f"{ROOT}{os.pathsep}{work}")
    for file in (baseline / "tokenizer").iterdir():
        shutil.copy(file, work / "model")
    return work


def run(work: Path, *arguments: str, check: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=check)


def test_the_module_is_imported_from_the_working_directory(folder: Path) -> None:
    done = run(folder, "-m", "l0drop", "--import", "my_gates", "explain", "model", "the dog sees a cat .")
    assert done.returncode == 0, done.stderr
    assert "~~" in done.stdout
    done = run(folder, "-m", "l0drop", "explain", "model", "the dog .", L0DROP_IMPORT="my_gates")
    assert done.returncode == 0, done.stderr


def test_without_it_the_error_says_how(folder: Path) -> None:
    done = run(folder, "-m", "l0drop", "explain", "model", "the dog sees a cat .")
    assert done.returncode == 2
    assert "no gate is registered as 'every_other'" in done.stderr
    assert done.stderr.strip().endswith("l0drop --import MODULE COMMAND ...")


def test_a_missing_module_is_named(folder: Path) -> None:
    done = run(folder, "-m", "l0drop", "--import", "my_gaets", "explain", "model", "the dog .")
    assert done.returncode == 2
    assert "--import my_gaets: there is no such module" in done.stderr
