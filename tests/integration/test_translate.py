"""`l0drop translate` through the command line: streams, files, processes, interruptions, errors."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from l0drop import load
from l0drop.app.translate import summary_lines
from l0drop.decoding.job import Done
from l0drop.decoding.text import TextModel
from l0drop.runs.job import LineTotals
from tests.decoding import folders
from tests.integration.test_training_commands import ENVIRONMENT, command, free_port
from tests.snippets import python_block
from tests.training import tiny

QUICK = ("--beams", "1", "--max-new-tokens", "6")


@pytest.fixture(scope="module")
def folder(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sparse model."""
    return folders.sparse(baseline, tmp_path_factory.mktemp("translate") / "model")


def text_of(lines: int, seed: int = 1) -> bytes:
    """Generated sentences and some blank lines."""
    source = random.Random(seed)
    made = []
    for _ in range(lines):
        words = [source.choice(("the", "a")), source.choice(tiny.NOUNS), source.choice(tiny.VERBS)]
        words += [source.choice(("the", "a")), source.choice(tiny.NOUNS)] * source.randint(1, 3)
        made.append("" if source.random() < 0.02 else " ".join([*words, "."]))
    return "".join(line + "\n" for line in made).encode()


# --- streams and files -------------------------------------------------------------------------------------------


def test_from_stdin_to_stdout(l0drop: Any, folder: Path) -> None:
    ran = l0drop("translate", folder, *QUICK, stdin=b"the dog sees a cat .\n\na road\n")
    wanted = load(folder).generate(["the dog sees a cat .", "", "a road"], num_beams=1, max_new_tokens=6)
    assert (ran.code, ran.lines) == (0, [result.text for result in wanted])
    assert "3 lines in" in ran.errors
    assert "dropped" in ran.errors
    again = l0drop("summarize", folder, *QUICK, stdin=b"the dog sees a cat .\n\na road\n")
    assert again.out == ran.out


def test_files_and_json(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    text, rows = tmp_path / "in.txt", tmp_path / "in.jsonl"
    text.write_bytes(text_of(40))
    sources = text.read_text().split("\n")[:-1]
    rows.write_text("".join(json.dumps({"doc": line.replace(" a ", "\na\n")}) + "\n" for line in sources))
    assert l0drop("translate", folder, *QUICK, "--input", text, "--output", tmp_path / "out.txt").out == b""
    assert l0drop("translate", folder, *QUICK, "-i", rows, "-o", tmp_path / "out.jsonl", "--field", "doc").code == 0
    plain = (tmp_path / "out.txt").read_text().split("\n")[:-1]
    made = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(plain) == len(made) == 40
    assert [row["text"] for row in made] == plain, "the tokenizer treats a line break as a space"
    first = next(row for row in made if row["kept"] and row["kept"][0]["start"] is not None)
    token, source = first["kept"][0], sources[first["line"] - 1]
    assert source[token["start"] : token["end"]] == token["text"].strip("▁")
    summary = json.loads((tmp_path / "out.jsonl.summary.json").read_text())
    assert {"commit", "device", "torch", "threads", "settings", "sparsity", "lines", "seconds"} <= set(summary)
    assert summary["lines"] == 40
    kept, all_ = sum(len(row["kept"]) for row in made), sum(row["source_tokens"] for row in made)
    assert summary["sparsity"] == pytest.approx(1 - kept / all_)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"in.txt", "in.jsonl", "out.txt", "out.jsonl", "out.jsonl.summary.json"}


def test_the_target_of_a_link_is_written(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    there, link = tmp_path / "there" / "out.txt", tmp_path / "out.txt"
    there.write_text("before\n")
    link.symlink_to(there)
    assert l0drop("translate", folder, *QUICK, "-o", link, stdin=b"the dog\na cat\n").code == 0
    assert link.is_symlink()
    assert len(there.read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["out.txt", "out.txt.partial", "out.txt.partial.json", "out.txt.partial.lock"])
def test_the_input_survives_a_clash_of_names(l0drop: Any, folder: Path, tmp_path: Path, name: str) -> None:
    text = tmp_path / name
    text.write_text("a road\n")
    ran = l0drop("translate", folder, *QUICK, "-i", text, "-o", tmp_path / "out.txt")
    assert (ran.code, ran.out) == (2, b"")
    assert name in ran.errors
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert text.read_text() == "a road\n"


def test_settings_reach_the_engine(l0drop: Any, folder: Path) -> None:
    stdin = b"the dog sees a cat .\n"
    arguments = ["--beams", "3", "--nbest", "3", "--json", "--max-new-tokens", "6", "--keep", "0.3"]
    arguments += ["--length-penalty", "0.2", "--set", "no_repeat_ngram_size=2"]
    ran = l0drop("translate", folder, *arguments, stdin=stdin)
    row = json.loads(ran.out)
    settings = {"length_penalty": 0.2, "no_repeat_ngram_size": 2, "keep": 0.3}
    (wanted,) = load(folder).generate(
        ["the dog sees a cat ."], num_beams=3, num_return_sequences=3, max_new_tokens=6, **settings
    )
    assert (row["text"], len(row["kept"])) == (wanted.text, len(wanted.kept))
    assert row["score"] == pytest.approx(wanted.score)
    assert [other["text"] for other in row["alternatives"]] == [other.text for other in wanted.alternatives]
    dense = l0drop("translate", folder, *QUICK, "--dense", stdin=stdin)
    assert dense.out == l0drop("translate", folder, *QUICK, stdin=stdin).out
    cut = l0drop("translate", folder, *QUICK, "--max-source", "4", "--dtype", "float64", "--prefix", "a ", stdin=stdin)
    assert cut.code == 0
    assert "warning: standard input, line 1:" in cut.errors
    assert "cut to 4" in cut.errors


def test_a_run_folder_gets_the_score_of_its_run(l0drop: Any, baseline: Path) -> None:
    from l0drop.data.metrics import bleu

    source, target = (baseline.parents[1] / f"test.{side}" for side in ("source", "target"))
    ran = l0drop("translate", baseline, "--input", source)
    assert "has no gates: decoding is dense" in ran.errors
    score = bleu(ran.lines, target.read_text().splitlines())
    metrics = json.loads((baseline / "metrics.json").read_text())
    assert score.value == pytest.approx(metrics["test"]["score"]["value"])


def test_messages_fit_80_columns_and_do_not_break_paths(
    l0drop: Any, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = tmp_path / ("a-long-name " * 12) / "model"
    shutil.copytree(baseline / "model", long)
    ran = l0drop("translate", long, *QUICK, stdin=b"the dog\n")
    assert ran.stderr.splitlines()[0] == f"{long} has no gates: decoding is dense"
    ran = l0drop("translate", long.parent / "modle", stdin=b"the dog\n")
    assert ran.stderr == f"error: {long.parent / 'modle'}: there is no such folder; did you mean {long}?\n"


def test_summary_lines_are_short_and_in_plain_numbers() -> None:
    before = LineTotals(lines=60_000_000, blank=1_000, source_tokens=600_000_000, kept_tokens=300_000_000)
    totals = LineTotals(lines=100_000_000, blank=2_000, cut=3_000, source_tokens=1_000_000_000, kept_tokens=600_000_000)
    lines = summary_lines(Done(totals, before, 34_042.553, is_gated=True))
    assert lines == [
        "100,000,000 lines in all, 60,000,000 before the interruption",
        "40,000,000 lines in 34,042.6 s, 2,000 blank, 3,000 cut",
        "1,000,000,000 source tokens, 40.0% dropped, 11,750 source tokens/s",
    ]
    assert max(map(len, lines)) <= 80
    assert summary_lines(
        Done(LineTotals(lines=2, source_tokens=9, kept_tokens=9), LineTotals(), 0.5, is_gated=False)
    ) == [
        "2 lines in 0.5 s",
        "9 source tokens, 18 source tokens/s",
    ]


# --- errors ------------------------------------------------------------------------------------------------------


def test_user_errors_are_one_message(l0drop: Any, folder: Path, baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.txt").write_bytes(b"fine\na\xff\n")
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "fine"}\nnot json\n')
    (tmp_path / "in.txt").write_bytes(b"the dog\n")
    text, folder_of_runs = tmp_path / "in.txt", baseline.parent
    cases: dict[str, tuple[list[Any], str]] = {
        "a missing model": ([tmp_path / "absent"], "absent: there is no such folder"),
        "a folder that is no model": ([tmp_path / "empty"], "empty: no model here, expected config.json"),
        "a folder of runs": ([folder_of_runs], "there are models in"),
        "a file": ([text], "in.txt: is a file"),
        "a missing input": ([folder, "-i", tmp_path / "absent.txt"], "absent.txt: No such file"),
        "bad UTF-8": ([folder, "-i", tmp_path / "bad.txt"], "bad.txt, line 2: not valid UTF-8 at byte 1 of the line"),
        "bad JSON": ([folder, "-i", tmp_path / "bad.jsonl"], "bad.jsonl, line 2: not JSON"),
        "an unwritable output": ([folder, "-o", text / "out"], "cannot be written ("),
        "a device as output": ([folder, "-o", "/dev/null"], "is not a regular file"),
        "compressed output": ([folder, "-o", tmp_path / "out.gz"], "out.gz would not be compressed"),
        "the input as output": ([folder, "-i", text, "-o", text], "is the input file"),
        "the output as summary": ([folder, "-i", text, "-o", "x", "--summary", "x"], "--summary: x is also --output"),
        "the input as summary": ([folder, "-i", text, "--summary", text], "is also --input and would be overwritten"),
        "n-best in plain text": ([folder, "--nbest", "3"], "--nbest: needs --json"),
        "resuming stdout": ([folder, "--resume"], "--resume: needs the --output of the interrupted run"),
        "resume and restart": ([folder, "-o", tmp_path / "x", "--resume", "--restart"], "give one of them"),
        "an unknown setting": ([folder, "-i", text, "--set", "beems=3"], "`beems`: not a generation setting"),
        "a setting without a value": ([folder, "--set", "beams"], "--set: expected NAME=VALUE"),
        "two dials": (
            [folder, "-i", text, "--keep", "0.5", "--shift", "1"],
            "choose one of --keep, --max-memory and --shift, got --keep and --shift",
        ),
        "more outputs than beams": (
            [folder, "-i", text, "--json", "--beams", "2", "--nbest", "4"],
            "--nbest: 4 is more than --beams 2",
        ),
        "a misspelled setting": (
            [folder, "-i", text, "--set", "num_beam=3"],
            "`num_beam`: not a generation setting; did you mean --beams?",
        ),
        "a dial without gates": ([baseline, "-i", text, "--keep", "0.5"], "keep: this model has no gate"),
        "a language": ([folder, "-i", text, "--target-lang", "de"], "--target-lang: the tokenizer"),
        "a device": ([folder, "--device", "nonsense"], "--device: nonsense cannot be used"),
        "a long output": ([folder, "-i", text, "--max-new-tokens", "5000"], "--max-new-tokens: 5000"),
    }
    for name, (arguments, message) in cases.items():
        ran = l0drop("translate", *arguments)
        assert ran.code == 2, f"{name}: {ran}"
        assert message in ran.errors, f"{name}: {ran.errors}"
        assert "Traceback" not in ran.errors, name
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "bad.txt", "bad.jsonl", "in.txt"}
    replaced = l0drop("translate", folder, *QUICK, "-i", tmp_path / "bad.txt", "--errors", "replace")
    assert (replaced.code, len(replaced.lines)) == (0, 2)


def test_an_unreachable_hub_is_asked_once(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    ran = subprocess.run(
        command("translate", "some/model"), env=environment, capture_output=True, text=True, check=False, cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        "error: some/model: there is no such folder, and the Hugging Face hub cannot be reached"
    )
    assert ran.stderr.count("\n") == 1, "no retries"


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that even root cannot write to")
def test_a_read_only_folder(l0drop: Any, folder: Path) -> None:
    ran = l0drop("translate", folder, "--output", "/sys/kernel/out.txt", stdin=b"the dog\n")
    assert ran.code == 2
    assert "/sys/kernel/out.txt: cannot be written (" in ran.errors


@pytest.mark.parametrize("stdin", [b"", b"\n\n \n", b"\x00", "😀\u2028שלום\n".encode(), b"dog " * 5000])
def test_odd_input(l0drop: Any, folder: Path, stdin: bytes) -> None:
    ran = l0drop("translate", folder, *QUICK, stdin=stdin)
    assert (ran.code, len(ran.lines)) == (0, stdin.count(b"\n") + (stdin != b"" and not stdin.endswith(b"\n")))


def test_a_reader_that_closes_the_pipe(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(text_of(1000))
    line = " ".join(command("translate", str(folder), *QUICK, "--window", "50", "-i", str(tmp_path / "in.txt")))
    ran = subprocess.run(
        ["bash", "-c", f"{line} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert len(ran.stdout.splitlines()) == 2
    assert ran.stdout.splitlines()[1] == "141"
    assert "Traceback" not in ran.stderr
    assert "error" not in ran.stderr.lower()


# --- interruptions -----------------------------------------------------------------------------------------------


def kill_at_random(arguments: list[str], output: Path, moment: random.Random, seconds: float) -> bool:
    """Start the command and kill it up to `seconds` after its first lines; False if it ended before."""
    process = subprocess.Popen(
        command(*arguments), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    record = output.with_name(f"{output.name}.partial.json")
    before = record.read_text() if record.exists() else None
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if record.exists() and record.read_text() != before:
            break
        time.sleep(0.005)
    time.sleep(moment.uniform(0, seconds))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def test_kill_and_resume_give_the_same_file(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    source, output, whole = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "whole.txt"
    source.write_bytes(text_of(1500))
    arguments = ["translate", str(folder), *QUICK, "--window", "20", "--threads", "1", "-i", str(source)]
    assert l0drop(*arguments, "-o", whole).code == 0
    seed = random.SystemRandom().randrange(2**32)
    killed = kill_at_random([*arguments, "-o", str(output)], output, random.Random(seed), 0.4)
    assert killed, f"it ended before it was killed (seed {seed})"
    assert not output.exists()
    done = json.loads((tmp_path / "out.txt.partial.json").read_text())["lines"]
    assert 0 < done < 1500
    refused = l0drop(*arguments, "-o", output)
    assert refused.code == 2
    assert f"an interrupted run left {done} lines here; use --resume to continue" in refused.errors
    other = l0drop(*arguments, "-o", output, "--resume", "--length-penalty", "2")
    assert other.code == 2
    assert "different: generation" in other.errors
    changed = shutil.copy(source, tmp_path / "changed.txt")
    changed.write_bytes(source.read_bytes().replace(b"the", b"a", 1))
    other = l0drop(*arguments[:-1], changed, "-o", output, "--resume")
    assert other.code == 2
    assert f"the first {done} lines differ from those that the interrupted run read" in other.errors
    assert l0drop(*arguments, "-o", output, "--resume").code == 0
    assert output.read_bytes() == whole.read_bytes(), f"seed {seed}"
    assert not list(tmp_path.glob("out.txt.*"))


def test_ctrl_c_says_how_to_resume(l0drop: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(text_of(100))
    real, batches = TextModel.decode, []

    def decode(self: TextModel, *args: Any) -> Any:
        batches.append(1)
        if len(batches) == 4:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(TextModel, "decode", decode)
    arguments = ["translate", folder, *QUICK, "--window", "20", "-i", source, "-o", output]
    ran = l0drop(*arguments)
    assert ran.code == 130
    assert ran.stderr == "stopped; to continue, add --resume to the command\n"
    assert not output.exists()
    assert (tmp_path / "out.txt.partial").read_bytes().count(b"\n") == 60
    assert l0drop(*arguments, "--resume").code == 0
    assert l0drop(*arguments[:-1], tmp_path / "whole.txt").code == 0
    assert output.read_bytes() == (tmp_path / "whole.txt").read_bytes()


def test_ctrl_c_while_the_model_loads_is_one_line(l0drop: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("l0drop.decoding.text.load", interrupted)
    ran = l0drop("translate", folder, stdin=b"the dog\n")
    assert (ran.code, ran.stderr) == (130, "stopped; the lines written so far are complete\n")


# --- processes ---------------------------------------------------------------------------------------------------


def torchrun(arguments: list[str], stdin: Any = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    return subprocess.run(
        [*launch, "-m", "l0drop", *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False, stdin=stdin
    )


def test_two_processes_write_the_same_file(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(text_of(700))
    arguments = ["translate", str(folder), *QUICK, "--window", "300", "--batch-tokens", "300", "--threads", "1"]
    assert l0drop(*arguments, "-i", source, "-o", tmp_path / "one.txt").code == 0
    with source.open("rb") as stdin:
        two = torchrun([*arguments, "-o", str(tmp_path / "two.txt"), "--summary", str(tmp_path / "two.json")], stdin)
    assert two.returncode == 0, two.stderr[-3000:]
    assert (tmp_path / "two.txt").read_bytes() == (tmp_path / "one.txt").read_bytes()
    assert json.loads((tmp_path / "two.json").read_text())["processes"] == 2


def test_a_command_leaves_its_process_group(l0drop: Any, folder: Path, tmp_path: Path) -> None:
    """At the end of the interpreter, the group's threads would abort a process that has finished its work."""
    source = tmp_path / "in.txt"
    source.write_bytes(text_of(3))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    assert l0drop("translate", folder, *QUICK, "-i", source, "-o", tmp_path / "out.txt").code == 0
    assert not distributed.is_initialized()


# --- large input and documentation -------------------------------------------------------------------------------


def resident(process: int) -> float:
    """Memory of a process in MB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


@pytest.mark.slow
def test_a_hundred_thousand_lines(folder: Path, tmp_path: Path) -> None:
    """Memory use is constant, all lines are in order, and two processes and a repeatedly killed one agree."""
    source, one = tmp_path / "in.txt", tmp_path / "one.txt"
    source.write_bytes(text_of(100_000))
    arguments = ["translate", str(folder), "--beams", "1", "--max-new-tokens", "4", "--threads", "1"]
    arguments += ["--window", "2000", "--batch-tokens", "2048", "-i", str(source)]
    process = subprocess.Popen(command(*arguments, "-o", str(one)), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    memory: list[tuple[int, float]] = []
    partial = tmp_path / "one.txt.partial.json"
    while process.poll() is None:
        with suppress(OSError, ValueError):  # the file is being replaced, or the process has just ended
            memory.append((json.loads(partial.read_text())["lines"], resident(process.pid)))
        time.sleep(0.1)
    assert process.returncode == 0, process.stderr.read() if process.stderr else ""
    early = max(size for lines, size in memory if lines <= 20_000)
    late = max(size for lines, size in memory if lines >= 60_000)
    print(f"memory: {early:.0f} MB in the first 20,000 lines, {late:.0f} MB in the last 40,000")
    assert late < early + 30, "memory grows with the input"
    outputs = one.read_text().split("\n")[:-1]
    sources = source.read_text().split("\n")[:-1]
    assert len(outputs) == 100_000
    assert all(output == "" for output, line in zip(outputs, sources, strict=True) if not line)
    model = load(folder)
    for index in random.Random(1).sample(range(100_000), 300):
        (alone,) = model.generate([sources[index]], num_beams=1, max_new_tokens=4)
        assert outputs[index] == alone.text, index + 1
    two = torchrun([*arguments, "-o", str(tmp_path / "two.txt")])
    assert two.returncode == 0, two.stderr[-3000:]
    assert (tmp_path / "two.txt").read_bytes() == one.read_bytes()
    seed, kills = random.SystemRandom().randrange(2**32), 0
    output, moment = tmp_path / "killed.txt", random.Random(seed)
    resumed = [*arguments, "-o", str(output), "--resume"]
    while kills < 4 and kill_at_random(resumed, output, moment, 8.0):
        kills += 1
    print(f"killed {kills} times (seed {seed})")
    assert kills
    if not output.exists():
        subprocess.run(command(*resumed), env=ENVIRONMENT, check=True, capture_output=True)
    assert output.read_bytes() == one.read_bytes(), f"seed {seed}"


def test_the_documented_python_runs(baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.sparse(baseline, tmp_path / "runs" / "sparse" / "model")
    monkeypatch.chdir(tmp_path)
    block = python_block("docs/decoding.md", "model.explain(")
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    explained = namespace["explained"]
    assert explained.attention.shape == (len(explained.output), len(explained.source))
