"""A shortener from its recipe to decoded and scored text, and the commands that need gates."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from l0drop import load
from l0drop.core.shorteners import Merge
from tests.training import tiny

STEPS = {"steps": 6, "save_every": 6, "eval_every": 6}
KEEP = 0.6
TEXTS = ["the dog sees a cat .", "a river knows the stone a road the bird ."]


@pytest.fixture(scope="module")
def merged(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe with `merge`, distilled from the baseline, and the run of `l0drop train`."""
    folder = tmp_path_factory.mktemp("merged")
    section = {"shortener": "merge", "shortener_args": {"keep": KEEP}}
    train = {**STEPS, "teacher": {"weight": 0.5}}
    values = tiny.sparse(folder, str(baseline), "merged", l0drop=section, train=train)
    file = folder / "merged.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file, folder


@pytest.fixture
def run(merged: tuple[Path, Path], l0drop: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run, trained by the command on first use."""
    file, folder = merged
    monkeypatch.chdir(folder)
    ran = l0drop("train", file)
    assert ran.code == 0, ran.errors
    return folder / "runs" / "merged"


def wanted_sparsity(run: Path, texts: list[str]) -> float:
    """Dropped by real tokens, if each text keeps max(1, round(keep · tokens)) rows."""
    lengths = [len(ids) for ids in load(run, "cpu").tokenizers.source(texts)["input_ids"]]
    return 1 - sum(max(1, round(KEEP * length)) for length in lengths) / sum(lengths)


def test_a_run_is_trained_at_the_share_of_its_recipe(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    texts = Path(yaml.safe_load((run / "recipe.yaml").read_text())["data"]["test"]["source"]).read_text().splitlines()
    assert metrics["test"]["sparsity"] == pytest.approx(wanted_sparsity(run, texts))
    assert "calibration" not in metrics
    assert metrics["lambda"] == 0
    logged = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert all(abs(entry["sparsity"] - (1 - KEEP)) < 0.1 for entry in logged if "cross_entropy" in entry)


def test_the_model_of_a_run_decodes_text(run: Path) -> None:
    model = load(run, "cpu")
    assert isinstance(model.model.shortener, Merge)
    assert "shortener='merge'" in repr(model)
    for result in model.generate(TEXTS):
        assert len(result.kept) == max(1, round(KEEP * result.source_tokens))
        assert result.kept[0].start == 0, "the first row begins with the first token"


def test_commands_that_work_with_a_shortener(run: Path, baseline: Path, l0drop: Any, tmp_path: Path) -> None:
    texts = "\n".join(TEXTS)
    ran = l0drop("translate", run, stdin=texts.encode())
    assert ran.code == 0, ran.errors
    assert [result.text for result in load(run, "cpu").generate(TEXTS)] == ran.lines
    ran = l0drop("evaluate", run, "--baseline", baseline, "--output", tmp_path / "scores")
    assert ran.code == 0, ran.errors
    found = json.loads((tmp_path / "scores" / "metrics.json").read_text())["runs"][0]
    metrics = json.loads((run / "metrics.json").read_text())
    assert found["system"]["sparsity"] == pytest.approx(metrics["test"]["sparsity"])
    assert found["system"]["scores"]["bleu"] == metrics["test"]["score"]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("explain", [TEXTS[0]], "comes from its shortener, Merge, without gates"),
        ("analyze", [], "analyses are of gates, so analyse a run with a gate"),
        ("translate", ["--keep", "0.5"], "keep=0.5.*acts on gates"),
        ("translate", ["--dense"], "dense=True.*acts on gates"),
    ],
)
def test_commands_about_gates_are_refused(
    command: str, options: list[str], message: str, run: Path, l0drop: Any
) -> None:
    ran = l0drop(command, run, *options, stdin=TEXTS[0].encode())
    assert ran.code != 0
    assert re.search(message, ran.errors), ran.errors
