"""Whole commands in separate processes: killed and resumed, one process and two, wrong input."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from l0drop.app import cli
from tests.training import tiny

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "l0drop", *arguments]


def l0drop(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, check=False)


def written(folder: Path, values: dict[str, Any]) -> str:
    file = folder / f"{values['name']}.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(file)


def test_a_killed_run_ends_with_the_weights_of_one_never_interrupted(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 40, "save_every": 8, "eval_every": 10})
    recipe = written(tmp_path, values)
    assert l0drop("train", recipe, "--runs", str(tmp_path / "whole")).returncode == 0
    killed = subprocess.Popen(
        command("train", recipe, "--runs", str(tmp_path / "killed")), env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    folder = tmp_path / "killed" / "sparse" / "checkpoints"
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint-16").exists() and time.monotonic() < deadline and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (folder / "checkpoint-16").exists()
    assert not (tmp_path / "killed" / "sparse" / "model").exists(), "it was killed before its end"
    # the leftovers of a kill in the middle of a save
    half = folder / ".partial" / "checkpoint-99"
    half.mkdir(parents=True, exist_ok=True)
    (half / "model.safetensors").write_bytes(b"half")
    resumed = l0drop("train", recipe, "--runs", str(tmp_path / "killed"))
    assert resumed.returncode == 0, resumed.stderr
    whole, again = (
        load_file(tmp_path / name / "sparse" / "model" / "model.safetensors") for name in ("whole", "killed")
    )
    assert set(whole) == set(again)
    for name, tensor in whole.items():
        assert torch.equal(again[name], tensor), name
    logs = [(tmp_path / name / "sparse" / "log.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    steps = [[entry for line in log if "loss" in (entry := json.loads(line))] for log in logs]
    for entry in (*steps[0], *steps[1]):
        del entry["tokens_per_second"]
        assert "epoch" not in entry, "a stream of steps has no epochs"
    assert steps[0] == steps[1]


def test_a_score_against_a_teachers_outputs_says_so(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 2, "targets": "teacher", "teacher": {"weight": 0.0}})
    del values["data"]["test"]["target"]
    done = l0drop("train", written(tmp_path, values), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    score = r"\d+\.\d\d"
    dropped = r", \d+\.\d% of the encodings dropped"
    assert re.search(rf"^valid: BLEU {score}{dropped}\n  nrefs", done.stderr, re.M), done.stderr
    against = rf"  against the outputs of {re.escape(str(baseline))}\n  nrefs"
    assert re.search(rf"^test: BLEU {score}{dropped}\n{against}", done.stderr, re.M), done.stderr
    assert "not how good the translations are" in " ".join(done.stderr.split())


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_one_process_and_two_take_the_same_steps(baseline: Path, tmp_path: Path) -> None:
    phases = {"anneal": 0.3, "fixed_gates": 0.3}
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 20, "save_every": 20, "batch_tokens": 600, **phases})
    values["model"] = {**values["model"], "dropout": 0.0}
    del values["data"]["valid"], values["data"]["test"]  # held out of the training text
    recipe = written(tmp_path, values)
    one = l0drop("train", recipe, "--runs", str(tmp_path / "one"))
    assert one.returncode == 0, one.stderr
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    two = subprocess.run(
        [*launch, "-m", "l0drop", "train", recipe, "--runs", str(tmp_path / "two")],
        capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr[-3000:]
    for split in ("train", "valid", "test"):
        ids, again = ((tmp_path / name / "sparse" / "data" / split / "source.ids") for name in ("one", "two"))
        assert ids.read_bytes() == again.read_bytes(), f"the same lines are held out: {split}"
    entries = []
    for name in ("one", "two"):
        lines = (tmp_path / name / "sparse" / "log.jsonl").read_text().splitlines()
        entries.append([e for line in lines if "loss" in (e := json.loads(line))])
    assert len(entries[0]) == len(entries[1]) == 20
    for first, second in zip(*entries, strict=True):
        for key in ("loss", "cross_entropy", "penalty", "sparsity", "lambda"):
            assert second[key] == pytest.approx(first[key], abs=1e-5, rel=1e-5), (first["step"], key)


LATE = """
import os, signal
from l0drop.app.cli import main
from l0drop.training.callbacks import Interruption

rank, end = int(os.environ["RANK"]), Interruption.on_step_end

def on_step_end(self, args, state, control, **more):
    if state.global_step == 5 and rank == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    end(self, args, state, control, **more)
    if state.global_step == 5 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)

Interruption.on_step_end = on_step_end
main()
"""


@pytest.mark.slow
def test_a_signal_that_reaches_one_process_a_step_later_ends_both(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 20, "save_every": 20, "batch_tokens": 600})
    recipe, script = written(tmp_path, values), tmp_path / "late.py"
    script.write_text(LATE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    done = subprocess.run(
        [*launch, str(script), "train", recipe, "--runs", str(tmp_path / "runs")],
        capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=120,
    )  # fmt: skip
    assert "stopped at step 5 of 20, with a checkpoint" in " ".join(done.stderr.split())
    assert "KeyboardInterrupt" not in done.stderr, "the late signal does not count as a second one"
    kept = [path.name for path in (tmp_path / "runs" / "sparse" / "checkpoints").glob("checkpoint-*")]
    assert kept == ["checkpoint-5"]


DYING = """
import os, signal, sys
from l0drop.app.cli import main
from l0drop.training.callbacks import Interruption

end = Interruption.on_step_end

def on_step_end(self, args, state, control, **more):
    if state.global_step == 5 and args.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    end(self, args, state, control, **more)

Interruption.on_step_end = on_step_end
main()
"""


def test_a_process_that_dies_ends_the_other_with_a_message_and_the_run_resumes(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 8, "save_every": 4, "batch_tokens": 600})
    recipe, script = written(tmp_path, values), tmp_path / "dying.py"
    script.write_text(DYING)
    for start in ([str(script)], ["-m", "l0drop"]):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
        done = subprocess.run(
            [*launch, *start, "train", recipe, "--runs", str(tmp_path / "runs")],
            capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=120,
        )  # fmt: skip
        said = " ".join(done.stderr.split())
        if start == [str(script)]:
            assert done.returncode != 0
            assert "error: another process of this run ended at step 6" in said
            assert "checkpoint-4" in said
            assert "run the same command again to resume" in said
            assert "l0drop/training/" not in said, "torchrun prints a traceback of its own, the run none"
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs" / "sparse" / "metrics.json").exists()


COMPILED = """
import sys, torch
from tests.training.compiler import compile_by_shapes
torch.compile = compile_by_shapes
from l0drop.app.cli import main
from l0drop.training.callbacks import Interruption

end, stop = Interruption.on_step_end, int(sys.argv.pop(1))

def on_step_end(self, args, state, control, **more):
    self.asked = state.global_step == stop
    end(self, args, state, control, **more)

Interruption.on_step_end = on_step_end
main()
"""


@pytest.mark.slow
def test_two_processes_with_compiled_layers_resume_exactly(tmp_path: Path) -> None:
    settings = {"steps": 12, "save_every": 4, "log_every": 1, "compile": True, "fast": True, "steer_every": 3}
    values = tiny.recipe(tmp_path, train={**settings, "steer_over": 0.1})
    values["l0drop"] = {"target_sparsity": 0.4, "start": 1.0}
    recipe, script = written(tmp_path, values), tmp_path / "compiled.py"
    script.write_text(COMPILED)
    for runs, stop in (("whole", 0), ("stopped", 7), ("stopped", 0)):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
        done = subprocess.run(
            [*launch, str(script), str(stop), "train", recipe, "--runs", str(tmp_path / runs)],
            capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)}, check=False, timeout=300,
        )  # fmt: skip
        assert ("stopped at step 7 of 12" in " ".join(done.stderr.split())) == bool(stop), done.stderr[-3000:]
    assert done.returncode == 0, done.stderr[-3000:]
    whole, stopped = (tmp_path / runs / values["name"] for runs in ("whole", "stopped"))
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, stopped))
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []
    logs = [map(json.loads, (folder / "log.jsonl").read_text().splitlines()) for folder in (whole, stopped)]
    moved = [[entry["lambda"] for entry in log if "lambda" in entry] for log in logs]
    assert moved[0] == moved[1]
    assert len({*moved[0]}) > 6, "λ still moves after the seventh step"


def test_ctrl_c_saves_and_says_how_to_resume(baseline: Path, tmp_path: Path) -> None:
    recipe = written(tmp_path, tiny.sparse(tmp_path, str(baseline), train={"steps": 5000, "save_every": 5000}))
    process = subprocess.Popen(
        command("train", recipe, "--runs", str(tmp_path / "runs")), env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = tmp_path / "runs" / "sparse" / "log.jsonl"
    deadline = time.monotonic() + 60
    while (not log.exists() or log.read_text().count("\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to resume" in " ".join(errors.split())
    assert len(list((tmp_path / "runs" / "sparse" / "checkpoints").glob("checkpoint-*"))) == 1


def test_wrong_input_is_named_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tiny.recipe(tmp_path)
    empty, short, broken = tmp_path / "empty.txt", tmp_path / "short.txt", tmp_path / "broken.txt"
    empty.write_text("")
    short.write_text("der Hund .\n")
    broken.write_bytes(b"die Katze .\n" + b"\xff\xfe\n" + b"x\n" * 398)

    def with_train(**corpus: str) -> dict[str, Any]:
        data = {**good["data"], "train": {**good["data"]["train"], **corpus}}
        return {**good, "data": data}

    limits = {"max_source": 32, "max_target": 32}
    cases = {
        "different numbers of lines": (
            with_train(target=str(short)),
            ["train.source has 400 lines", "short.txt has 1"],
        ),
        "bad UTF-8": (with_train(target=str(broken)), ["broken.txt", "line 2"]),
        "an empty file": (with_train(target=str(empty)), ["empty.txt"]),
        "a missing file": (with_train(source=str(tmp_path / "absent.en")), ["absent.en"]),
        "no text to hold lines out of": (
            {**good, "data": {**limits, "train": {"source": str(tmp_path / "absent.en"), "target": str(short)}}},
            ["absent.en: there is no such file (data.train.source in the recipe"],
        ),
        "too few lines to hold some out": (
            {**good, "data": {**limits, "train": {"source": str(short), "target": str(short)}}},
            ["short.txt: has 1 usable lines, too few to hold some out for valid and test", "data.valid"],
        ),
        "an unknown key": ({**good, "trian": {}}, ["trian", "unknown key", "train"]),
        "a wrong type": ({**good, "train": {**good["train"], "steps": "many"}}, ["train.steps", "many"]),
        "λ and a target": ({**good, "l0drop": {"lambda_": 0.3, "target_sparsity": 0.5}}, ["l0drop.target_sparsity"]),
    }
    for number, (name, (values, expected)) in enumerate(cases.items()):
        recipe = written(tmp_path, {**values, "name": f"case{number}"})
        monkeypatch.setattr(sys, "argv", ["l0drop", "train", recipe, "--runs", str(tmp_path / "runs")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        message = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == 2, f"{name}: {message}"
        for part in expected:
            assert part in message, f"{name}: {message}"
        assert not (tmp_path / "runs" / f"case{number}" / "data" / "train").exists(), name


def test_prepare_reports_cut_and_skipped_lines(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path)
    source = Path(values["data"]["train"]["source"])
    lines = source.read_text().splitlines()
    lines[3], lines[5] = "", " ".join(["the dog sees"] * 40)
    source.write_text("\n".join(lines) + "\n")
    result = l0drop("prepare", written(tmp_path, values), "--runs", str(tmp_path / "runs"))
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "runs" / "tiny" / "data" / "train" / "manifest.json").read_text())["summary"]
    assert (summary["one_sided"], summary["truncated_source"], summary["pairs"]) == (1, 1, 399)
    assert re.search(r"pairs +│ +399 │ +24 │ +24 │", result.stderr)
    assert re.search(r"lines without source or target, skipped │ +1 │", result.stderr)
    assert max(map(len, result.stderr.splitlines()[:-1])) <= 80
