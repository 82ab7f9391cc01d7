"""The programs in examples/ run as their docstrings say, on a tiny model and generated text."""

import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import l0drop
from tests.models import task
from tests.snippets import ROOT

EXAMPLES = ROOT / "examples"
WORDS = ["<pad>", "<s>", "</s>", *(f"um{i}" for i in range(task.FIRST_WORD - 3))]
WORDS += [f"word{i}" for i in range(task.VOCABULARY - len(WORDS))]
"""The tokens of `task`, written as text: the fillers are um0, um1, ..."""


def text_of(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids[:-1])


def pairs(count: int) -> list[tuple[str, str]]:
    source = random.Random(5)
    return [(text_of(first), text_of(second)) for first, second in (task.sentence(source) for _ in range(count))]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dense model that solves the task, with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = task.small_model()
    task.solve(model, 500)
    model.generation_config.max_new_tokens = 12
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", task.EOS)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special).save_pretrained(folder)
    return folder


def run(name: str, *arguments: object, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def fillers_among(tokens: list[str]) -> float:
    return sum(token.startswith("um") for token in tokens) / len(tokens)


def test_every_example_says_how_to_run_it() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [file.name for file in files] == [
        "bulk_ray.py",  # run by tests/decoding/test_columns.py
        "custom_gate.py",
        "own_training_loop.py",
        "public_checkpoint.py",
    ]
    for file in files:
        assert f"python examples/{file.name} " in file.read_text(encoding="utf-8").split('"""')[1]


def test_own_training_loop(checkpoint: Path, tmp_path: Path) -> None:
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs(4000))
    (tmp_path / "pairs.tsv").write_text(lines, encoding="utf-8")
    options = ("--steps", 450, "--batch", 32, "--lr", 3e-4)
    printed = run("own_training_loop.py", checkpoint, "pairs.tsv", "sparse", *options, folder=tmp_path)
    before, after = map(float, re.findall(r"([\d.]+)% (?:after training|calibrated)", printed))
    assert after == pytest.approx(40, abs=1)
    assert before == pytest.approx(40, abs=5)
    model = l0drop.load(tmp_path / "sparse")
    results = model.generate([source for source, _ in pairs(200)])
    assert sum(result.text == target for result, (_, target) in zip(results, pairs(200), strict=True)) > 180
    assert fillers_among([token.text for result in results for token in result.kept]) < 0.1


def test_public_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{source}\n" for source, _ in pairs(2000)), encoding="utf-8")
    options = ("--steps", 450, "--batch", 32, "--lr", 3e-4)
    printed = run("public_checkpoint.py", checkpoint, "text", "sparse", *options, folder=tmp_path)
    assert float(re.findall(r"dropped ([\d.]+)%", printed)[0]) == pytest.approx(40, abs=1)
    same, total = map(int, re.findall(r"(\d+) of (\d+) held-out outputs", printed)[0])
    assert total == 100
    assert same > 85
    assert l0drop.load(tmp_path / "sparse").is_gated


def test_public_checkpoint_is_saved_when_the_target_is_missed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{source}\n" for source, _ in pairs(200)), encoding="utf-8")
    options = ("--steps", 60, "--batch", 16, "--lr", 1e-4, "--target", 0.9)
    printed = run("public_checkpoint.py", checkpoint, "text", "sparse", *options, folder=tmp_path)
    assert re.search(r"^sparse holds the model as trained, not calibrated: .*Train longer", printed, re.MULTILINE)
    assert float(re.findall(r"^dropped ([\d.]+)%", printed, re.MULTILINE)[0]) < 85
    assert l0drop.load(tmp_path / "sparse").is_gated


def test_custom_gate(checkpoint: Path, tmp_path: Path) -> None:
    sentence = "um1 word3 um2 word4 um1 word5"
    printed = run("custom_gate.py", checkpoint, "out", sentence, "um1", "word4", folder=tmp_path)
    assert re.search(r"^kept: +word3 um2 word5( </s>)?$", printed, re.MULTILINE), printed
    with pytest.raises(ValueError, match="no gate is registered as 'drop-tokens'"):
        l0drop.load(tmp_path / "out")
    gate = runpy.run_path(str(EXAMPLES / "custom_gate.py"))["DropTokens"]
    model = l0drop.load(tmp_path / "out").model
    assert isinstance(model.gate, gate)
    assert model.gate.ids == [WORDS.index("um1"), WORDS.index("word4")]
    ids = torch.tensor([[WORDS.index(word) for word in sentence.split()]])
    assert model.explain(ids)[0].kept == [1, 2, 5]
    source = (EXAMPLES / "custom_gate.py").read_text(encoding="utf-8")
    assert source.count("\n", source.index("@l0drop.register_gate"), source.index("def main")) < 40
