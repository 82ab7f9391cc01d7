"""Study scripts from their command line to their tables, on a small grammar: real training, in this process."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import europarl
import europarl_documents
import multi30k
from l0drop.data.text import one_line, read_lines
from l0drop.data.whole import write_whole
from l0drop.decoding.text import load
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.runs.study import LengthScores, StudyResults
from l0drop.study import distillation, seeds
from l0drop.training.run import train
from tests.training import tiny

SMALL = {
    "--set": {
        "train.precision": "fp32", "train.batch_tokens": 400, "train.save_every": 2, "train.eval_every": 1000,
        "train.steer_every": 2, "train.fast": "false", "evaluate.sentences": 6, "evaluate.beams": 1,
        "evaluate.max_new_tokens": 8, "data.max_source": 48, "data.max_target": 48,
    },
    "--baseline": {
        "train.steps": 10, "train.warmup": 2, "tokenizer.vocab_size": 60, "model.transformer.d_model": 16,
        "model.transformer.heads": 2, "model.transformer.ffn": 16, "model.transformer.encoder_layers": 1,
        "model.transformer.decoder_layers": 1,
    },
    "--fine-tune": {"train.steps": 8, "train.average": 1},
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Text in which a blank line ends every third sentence."""
    folder = tmp_path / "data"
    folder.mkdir()
    for seed, (split, count) in enumerate({"train": 60, "valid": 20, "test": 20}.items()):
        for side, file in tiny.write_text(folder, split, count, seed).items():
            lines = [line if n % 3 < 2 else f"{line}\n" for n, line in enumerate(read_lines(file))]
            ending = "en" if side == "source" else "de"
            (folder / f"{split}.{ending}").write_text("".join(f"{line}\n" for line in lines))
            Path(file).unlink()
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and translate in this process, which saves the start of other ones."""

    def one_by_one(
        todo: Any, folder: Path, *_: Any, ready: Callable[[Any], bool], more: Any, busy: Callable[[], bool]
    ) -> Iterator[str]:
        waiting = list(todo)
        while waiting:
            while busy():  # two threads of one process must not load models at the same time
                time.sleep(0.01)
            recipe = next(filter(ready, waiting))
            waiting.remove(recipe)
            train(recipe, folder, Console(quiet=True))
            waiting += more(recipe.name)
            yield recipe.name

    def translate(run: Path, source: Path, output: Path, processes: int) -> None:
        results = load(run).generate([*read_lines(source)], num_beams=1, max_new_tokens=8)
        write_whole(output, "".join(f"{one_line(result.text) or 'ein'}\n" for result in results))

    monkeypatch.setattr(seeds, "train_in_parallel", one_by_one)
    monkeypatch.setattr(distillation, "translate", translate)


def run(script: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str, **changes: Any) -> None:
    arguments = ["--data", str(folder / "data"), "--runs", str(folder / "runs"), *options]
    for option, values in SMALL.items():
        more = changes.get(option.strip("-").replace("-", "_"), {})
        for key, value in {**values, **more}.items():
            arguments += [] if value is None else [option, f"{key}={value}"]
    monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
    script.main()


@pytest.mark.usefixtures("data", "here")
def test_a_screening_never_reads_the_test_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for ending in ("en", "de"):
        (tmp_path / "data" / f"test.{ending}").write_text("")
    systems = ["on-taught", "zero-0.47", "zero-0.47-fixed", "zero-0.7", "zero-0.7-fixed"]
    options = ["--screen", "--seeds", "1", "--systems", *systems]
    run(multi30k, monkeypatch, tmp_path, *options)
    found = StudyResults.read(tmp_path / "runs" / "results.json")
    assert [*found.systems] == ["base", "on", *systems]
    assert all(one.test is None and one.valid is not None for system in found.systems.values() for one in system.runs)
    assert all(len(found.systems[name].runs[0].length_penalties or ()) == 5 for name in systems)
    tables = capsys.readouterr().err
    assert "valid: less the chosen dense model" in tables
    assert "| 2 | `" in tables, "two candidates"
    before = (tmp_path / "runs" / "results.json").read_text()
    run(multi30k, monkeypatch, tmp_path, *options, "--gather")
    assert (tmp_path / "runs" / "results.json").read_text() == before


@pytest.mark.slow
@pytest.mark.usefixtures("data", "here")
def test_baselines_are_confirmed_one_by_one_and_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--confirm", "fixed", "plain", "--sparsities", "0.4", "--seeds", "1"]
    run(europarl, monkeypatch, tmp_path, *options)
    runs = tmp_path / "runs"
    references = {path.name for path in runs.glob("on-taught*-s1")}
    assert len(references) == 5
    shared = {path.resolve() for path in runs.glob("*-s1/data") if path.parent.name not in ("base-s1", "on-s1")}
    assert len(shared) == 1, "the teacher's outputs are tokenized once"
    tested = {path.parent.name for path in runs.glob("*/metrics.json") if RunMetrics.read(path).test is not None}
    assert {"on-s1", "zero-0.4-s1", "zero-0.4-fixed-s1"} < tested
    (chosen,) = tested & references
    assert len(tested) == 4, "neither the baseline nor other references are decoded on the test text"
    text = RunFolder(runs / chosen).outputs_on("test").read_text()
    reference = chosen.removesuffix("-s1")
    run(europarl, monkeypatch, tmp_path, *options, "--first-seed", "2", "--reference", reference)
    assert RunFolder(runs / chosen).outputs_on("test").read_text() == text
    assert {path.name for path in runs.glob("*.translated")} == {"train-s1.translated", "train-s2.translated"}
    capsys.readouterr()
    run(europarl, monkeypatch, tmp_path, *options[:-1], "2", "--gather")
    found = StudyResults.read(runs / "results.json")
    against = found.systems["zero-0.4-fixed"].against[reference]
    assert (against.baselines, against.unit, against.units) == (2, "document", 7)
    assert "no verdict: 2 independent baselines" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_documents_are_trained_within_their_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own, which the limits stop."""
    options = ["--lengths", "24", "48", "--vocabulary", "60", "--gated", "zero-0.4"]
    timed = ["--seconds", "15", "60"]
    documents: dict[str, dict[str, Any]] = {
        "set": {"evaluate.batch_tokens": 2000},
        "baseline": {"train.steps": 100_000},
    }
    documents["baseline"]["tokenizer.vocab_size"] = None  # the text brings its tokenizer
    run(europarl_documents, monkeypatch, tmp_path, *options, *timed, **documents)
    found = LengthScores.read(tmp_path / "runs" / "lengths.json")
    assert {(row.system, row.length) for row in found.rows} == {
        (system, length) for system in ("base", "on", "zero-0.4") for length in (24, 48)
    }
    steps = {
        name: RunMetrics.read(tmp_path / "runs" / f"{name}-s1" / "metrics.json").steps for name in ("on", "zero-0.4")
    }
    compared = found.difference("zero-0.4", "test", 24) is not None
    assert compared == (steps["on"] == steps["zero-0.4"])
    assert all("no_source" in row.controls for row in found.rows)
    assert "lost share of the gap" in capsys.readouterr().err
