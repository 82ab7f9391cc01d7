"""A file-to-file job from Python: defaults by name, resuming, summaries, refusals before the model is loaded."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from l0drop import load
from l0drop.decoding.bulk import Decoding
from l0drop.decoding.destination import Destination
from l0drop.decoding.job import Done, Job, run
from l0drop.decoding.lines import TextInput
from l0drop.decoding.text import TextModel
from l0drop.runs.job import LineTotals, TextSummary
from tests.training import tiny

GENERATION = {"num_beams": 1, "max_new_tokens": 5}
TEXTS = [f"the {noun} sees a {other} ." for noun in tiny.NOUNS for other in tiny.NOUNS][:30]


@pytest.fixture(scope="module")
def model(sparse_folder: Path) -> TextModel:
    return load(sparse_folder, "cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "in.txt"
    file.write_text("".join(text + "\n" for text in TEXTS))
    return file


def job_of(source: Path | None, output: Destination, **decoding: Any) -> Job:
    return Job(TextInput(source), output, Decoding(**{"generation": GENERATION, "window": 10, **decoding}))


def finished(done: Done | None) -> Done:
    assert done is not None
    return done


def never() -> TextModel:
    raise AssertionError("the model was loaded")


def test_a_job_writes_the_outputs_of_generate(model: TextModel, source: Path, tmp_path: Path) -> None:
    wanted = [result.text for result in model.generate(TEXTS, **GENERATION)]
    calls: list[Any] = []
    done = finished(
        run(
            job_of(source, Destination(tmp_path / "out.txt")),
            lambda: model,
            loaded=calls.append,
            progress=lambda totals, read: calls.append((totals.lines, read)),
        )
    )
    assert (tmp_path / "out.txt").read_text().splitlines() == wanted
    assert (done.totals.lines, done.before, done.is_gated) == (30, LineTotals(), True)
    assert done.seconds > 0
    assert calls[0] is model
    assert [lines for lines, _ in calls[1:]] == [10, 20, 30]
    assert calls[-1][1] == source.stat().st_size == TextInput(source).size
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_standard_input_and_output(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog\n\na cat\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    done = finished(run(job_of(None, Destination()), lambda: model))
    assert (done.totals.lines, done.totals.blank) == (3, 1)
    assert written.getvalue().decode().split("\n")[1] == ""
    assert TextInput().size is None


def test_json_is_read_and_written_by_the_names_of_the_files(model: TextModel, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "the dog"}\n"a cat"\n')
    run(job_of(source, Destination(output)), lambda: model)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["line"] for row in rows] == [1, 2]
    assert "alternatives" not in rows[0]
    content = json.loads((tmp_path / "out.jsonl.summary.json").read_text())
    assert (content["lines"], content["processes"], content["settings"]["jsonl"], content["version"]) == (2, 1, True, 1)
    assert {"sparsity", "seconds", "kept_tokens", "decoding_seconds", "torch", "device"} <= content.keys()
    summary = TextSummary.read(tmp_path / "out.jsonl.summary.json")
    assert (summary.totals.lines, summary.sparsity, summary.processes) == (2, summary.totals.sparsity, 1)
    run(job_of(source, Destination(tmp_path / "plain.jsonl", as_json=False)), lambda: model)
    assert (tmp_path / "plain.jsonl").read_text().splitlines() == [row["text"] for row in rows]
    assert not (tmp_path / "plain.jsonl.summary.json").exists()


def interrupted(model: TextModel, job: Job, windows: int) -> None:
    """Run a job, and stop it after some windows."""

    def stop(totals: LineTotals, read: int) -> None:
        if totals.lines == 10 * windows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job, lambda: model, progress=stop)


def test_an_interrupted_job_is_resumed_or_discarded(model: TextModel, source: Path, tmp_path: Path) -> None:
    output, whole = tmp_path / "out.txt", tmp_path / "whole.txt"
    run(job_of(source, Destination(whole)), lambda: model)
    interrupted(model, job_of(source, Destination(output)), windows=2)
    assert not output.exists()
    with pytest.raises(ValueError, match=r"an interrupted run left 20 lines here; use `resume=True`"):
        run(job_of(source, Destination(output)), never)
    with pytest.raises(ValueError, match="had other settings \\(different: window\\)"):
        run(job_of(source, Destination(output, resume=True), window=5), lambda: model)
    done = finished(run(job_of(source, Destination(output, resume=True)), lambda: model))
    assert (done.totals.lines, done.before.lines) == (30, 20)
    assert output.read_bytes() == whole.read_bytes()
    interrupted(model, job_of(source, Destination(output)), windows=1)
    done = finished(run(job_of(source, Destination(output, restart=True)), lambda: model))
    assert (done.before.lines, output.read_bytes()) == (0, whole.read_bytes())


def test_a_resumed_job_keeps_the_kind_of_linear_layers(
    model: TextModel, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds round differently, and which one is faster is measured anew each time."""
    monkeypatch.setattr(model.engine, "linears", "plain")
    interrupted(model, job_of(source, Destination(tmp_path / "out.txt")), windows=1)
    monkeypatch.setattr(model.engine, "linears", "packed")
    finished(run(job_of(source, Destination(tmp_path / "out.txt", resume=True)), lambda: model))
    assert model.engine.linears == "plain"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Destination(resume=True), "^`resume`: needs the `output` of the interrupted run"),
        (lambda: Destination(restart=True), "^`restart`: needs the `output`"),
        (lambda: Destination(Path("x"), resume=True, restart=True), "^`resume` and `restart`: give one of them"),
        (lambda: Destination(Path("x.gz")), "^`output`: x.gz would not be compressed"),
        (
            lambda: job_of(None, Destination(), generation={"num_return_sequences": 2}),
            "^`num_return_sequences`: needs `as_json`",
        ),
    ],
)
def test_contradictions_are_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_mistakes_are_found_before_the_model_is_loaded(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^`output`: .* is the input file"):
        run(job_of(source, Destination(source)), never)
    with pytest.raises(ValueError, match="absent.txt: No such file"):
        run(job_of(tmp_path / "absent.txt", Destination(tmp_path / "out.txt")), never)
    with pytest.raises(ValueError, match=r"cannot be written \("):
        run(job_of(source, Destination(source / "out.txt")), never)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt"}
