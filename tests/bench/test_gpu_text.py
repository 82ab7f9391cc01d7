"""The benchmark of text on a GPU, on a CPU with a tiny model."""

import json
import statistics
from collections import Counter
from dataclasses import replace

import pytest
import torch

from l0drop import load
from l0drop.bench import gpu_text
from l0drop.bench.gpu_text import gpu_text_benchmark
from l0drop.bench.peers import BRIEF
from l0drop.bench.workloads import TextFile
from l0drop.decoding.text import TextModel
from l0drop.report.gpu_benchmark import text_table
from l0drop.runs.benchmark import read_decode_benchmark
from l0drop.runs.gpu_benchmark import GpuTextBenchmark
from l0drop.runs.table import as_markdown
from tests.bench.test_decoding import l0drop
from tests.decoding import folders

SYSTEMS = ("engine-short", "engine-dense", "ct2-float32", "hf-short", "hf-dense")
QUIET = {"say": lambda _: None}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "input.txt"
    lines = [folders.SENTENCES[n % 3] for n in range(6)]
    file.write_text("\n".join([*lines[:3], "", *lines[3:], "the eighth line"]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def model_folder(baseline, tmp_path_factory):
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture(scope="module")
def result(model_folder, text, saved):
    patch = pytest.MonkeyPatch()
    patch.setattr(gpu_text, "SYSTEMS", SYSTEMS)
    patch.setattr(gpu_text, "LIMITS", {"ct2": (16, 512), "hf": (64,)})
    workload = TextFile(str(model_folder), text, sentences=7, max_new_tokens=10)
    found = gpu_text_benchmark(workload, None, None, 2, 1, 3, "cpu", "float32", **QUIET, save=saved.append)
    patch.undo()
    return found


def test_every_system_decodes_every_line(result):
    assert list(result.systems) == list(SYSTEMS)
    assert result.sentences == 6, "one line is blank"
    assert 0 < result.sparsity < 1
    for name, system in result.systems.items():
        assert len(system.seconds) == (1 if name.startswith("hf") else 2)
        assert system.sentences_per_second == pytest.approx(6 / statistics.median(system.seconds))
    written = {name: system.output_tokens for name, system in result.systems.items()}
    assert written["engine-dense"] == written["engine-short"] == written["hf-dense"]


def test_the_fastest_batches_are_timed(result):
    ct2 = result.systems["ct2-float32"]
    assert set(ct2.tried) == {"16", "512"}
    assert ct2.batch_tokens == int(min(ct2.tried, key=ct2.tried.__getitem__))
    assert result.systems["engine-short"].batch_tokens is None


def test_outputs_are_those_of_the_loaded_model(model_folder, text, result):
    lines = text.read_text().splitlines()[:7]
    expected = load(model_folder, device="cpu").generate(lines, **result.generation)
    assert sum(one.output_tokens for one in expected) == result.systems["engine-short"].output_tokens
    kept, tokens = sum(len(one.kept) for one in expected), sum(one.source_tokens for one in expected)
    assert result.sparsity == pytest.approx(1 - kept / tokens)


def test_lines_are_decoded_alone_by_our_engine(result):
    for name in ("engine-short", "engine-dense"):
        latency = result.systems[name].latency_ms
        assert 0 < latency.p50 <= latency.p99
    assert result.systems["hf-dense"].latency_ms is None


def test_the_result_is_complete_json(result, tmp_path):
    result.write(tmp_path / "text.json")
    assert GpuTextBenchmark.read(tmp_path / "text.json") == result
    assert read_decode_benchmark(tmp_path / "text.json") is None, "reports show CPU times"
    content = json.loads((tmp_path / "text.json").read_text(encoding="utf-8"))
    assert content.keys() >= {"model", "input", "systems", "ratios", "generation", "device", "commit", "version"}
    slow, fast = (content["systems"][name]["seconds"] for name in ("hf-dense", "engine-short"))
    (found,) = [one["times"] for one in content["ratios"] if (one["system"], one["by"]) == ("hf-dense", "engine-short")]
    assert found == pytest.approx(slow[0] / fast[0])


def test_the_table_shows_every_system(result):
    title, table = text_table(result)
    assert title.startswith("6 lines")
    shown = as_markdown(table)
    assert all(name in shown for name in SYSTEMS)


def test_results_are_saved_whenever_a_system_is_done(result, saved):
    """A run that is ended keeps them."""
    slow = [name for name in SYSTEMS if name.startswith("hf")]
    turns = [*SYSTEMS, *(name for name in reversed(SYSTEMS) if name not in slow)]
    for index, one in enumerate(saved[: len(turns)]):
        assert {name: len(system.seconds) for name, system in one.systems.items()} == Counter(turns[: index + 1])
    assert [one.alone for one in saved] == [None] * len(turns) + [3, 3, 3]  # two rounds, and the end
    assert [one.systems["engine-short"].latency_rounds for one in saved[len(turns) :]] == [1, 2, 2]
    assert saved[-1] == result
    assert {one.sparsity for one in saved} == {result.sparsity}, "lines alone do not change it"


def test_a_run_that_is_ended_in_its_first_round_leaves_the_systems_that_are_done(
    model_folder, text, tmp_path, monkeypatch
):
    file = tmp_path / "text.json"

    def ended(self, peer, limit, lines, report=None, **changes):
        if changes:  # it warms up
            return 0
        if report is None:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(gpu_text.Contest, "hf", ended)
    workload = TextFile(str(model_folder), text, sentences=3, max_new_tokens=6)
    systems = ("engine-short", "engine-dense", "hf-dense")
    with pytest.raises(KeyboardInterrupt):
        gpu_text_benchmark(
            workload, systems, device="cpu", dtype="float32", **QUIET, save=lambda result: result.write(file)
        )
    found = GpuTextBenchmark.read(file)
    assert {name: len(system.seconds) for name, system in found.systems.items()} == dict.fromkeys(systems[:2], 1)


def test_the_second_system_of_a_library_takes_the_batch_size_of_the_first(result, model_folder, text, monkeypatch):
    calls = []
    real = gpu_text.Contest.hf

    def hf(self, peer, limit, lines, *report, **changes):
        calls.append((peer.dense, limit, bool(report), dict(changes)))
        return real(self, peer, limit, lines, *report, **changes)

    monkeypatch.setattr(gpu_text.Contest, "hf", hf)
    monkeypatch.setattr(gpu_text, "LIMITS", {"hf": (64,)})
    said = []
    workload = TextFile(str(model_folder), text, sentences=3, max_new_tokens=6)
    found = gpu_text_benchmark(workload, ("hf-short", "hf-dense"), None, 5, 2, 0, "cpu", "float32", say=said.append)
    assert calls == [
        (False, 64, False, BRIEF), (False, 64, True, {}),  # it tries the only size
        (True, 64, False, BRIEF),  # it does not warm up in full
        (False, 64, False, {}), (True, 64, False, {}), (True, 64, False, {}), (False, 64, False, {}),
    ]  # fmt: skip
    short, dense = (found.systems[name] for name in ("hf-short", "hf-dense"))
    assert (short.batch_tokens, [*short.tried]) == (64, ["64"])
    assert (dense.batch_tokens, dense.tried) == (64, {})
    assert found.limited == ["hf-dense: batches of 64 tokens, the fastest of hf-short"]
    assert found.limited[0] in text_table(found)[1].note
    phases = [line.split(": took")[0] for line in said if ": took" in line]
    assert phases == ["loading", "hf-short: warm-up", "hf-dense: warm-up", "rounds", "lines alone"]


def test_generate_reports_its_progress(model_folder, text):
    loaded = load(model_folder, device="cpu")
    contest = gpu_text.Contest(loaded, None, {"num_beams": 1, "max_new_tokens": 3})
    shares = []
    lines = text.read_text().splitlines()
    contest.hf(contest.peer("hf-dense", text.parent), 64, lines, shares.append)
    assert len(shares) > 1
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0


def test_a_system_that_fails_in_a_round_is_left_out(model_folder, text, monkeypatch):
    calls = []

    def engine(self, which, lines):
        calls.append(which)
        if which == "dense" and calls.count("dense") == 4:  # its second round, after two calls to warm up
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, which, lines)

    real = gpu_text.Contest.engine
    monkeypatch.setattr(gpu_text.Contest, "engine", engine)
    systems = ("engine-short", "engine-dense")
    found = gpu_text_benchmark(
        TextFile(str(model_folder), text, sentences=3, max_new_tokens=10),
        systems,
        None,
        3,
        1,
        2,
        "cpu",
        "float32",
        **QUIET,
    )
    assert list(found.systems) == ["engine-short"], found.left_out
    assert len(found.systems["engine-short"].seconds) == 3
    assert "out of memory" in found.left_out["engine-dense"]
    assert calls.count("dense") == 4


def test_a_model_without_a_gate_is_decoded_densely(baseline, text):
    workload = TextFile(str(baseline), text, sentences=3, max_new_tokens=6)
    systems = ("engine-short", "engine-dense", "ct2-float16")
    found = gpu_text_benchmark(workload, systems, None, 1, 1, alone=0, device="cpu", dtype="float32", **QUIET)
    assert list(found.systems) == ["engine-dense"]
    assert found.sparsity is None
    assert "float16" in found.left_out["ct2-float16"]


def test_dense_systems_decode_the_baseline(model_folder, baseline, text):
    workload = TextFile(str(model_folder), text, sentences=7, max_new_tokens=10)
    systems = ("engine-short", "engine-baseline", "ct2-float32", "hf-dense")
    patch = pytest.MonkeyPatch()
    patch.setattr(gpu_text, "SYSTEMS", systems)
    found = gpu_text_benchmark(workload, systems, str(baseline), 1, 1, alone=1, device="cpu", dtype="float32", **QUIET)
    patch.undo()
    assert found.baseline == str(baseline)
    expected = load(baseline, device="cpu").generate(text.read_text().splitlines()[:7], **found.generation)
    tokens = sum(one.output_tokens for one in expected)
    assert found.systems["engine-baseline"].output_tokens == found.systems["hf-dense"].output_tokens == tokens
    assert found.systems["engine-baseline"].latency_ms is not None
    assert ("engine-baseline", "engine-short") in {(one.system, one.by) for one in found.ratios}


def test_a_baseline_with_gates_is_refused(model_folder, text):
    with pytest.raises(ValueError, match="`baseline`: has gates"):
        gpu_text_benchmark(TextFile(str(model_folder), text), None, str(model_folder), device="cpu", dtype="float32")


def test_a_baseline_with_another_tokenizer_is_refused(model_folder, baseline, text, monkeypatch):
    encode = TextModel.encode

    def other(self, lines, *given, **named):
        found = encode(self, lines, *given, **named)
        return found if self.is_gated else [replace(one, ids=[*one.ids, 3]) for one in found]

    monkeypatch.setattr(TextModel, "encode", other)
    with pytest.raises(ValueError, match="`baseline`: its tokenizer differs from the model's"):
        gpu_text_benchmark(TextFile(str(model_folder), text), None, str(baseline), device="cpu", dtype="float32")


def test_the_command_measures_text(model_folder, text, tmp_path, monkeypatch, capsys):
    def on_cpu(workload, systems, **turns):
        return gpu_text_benchmark(workload, systems, device="cpu", dtype="float32", **turns)

    monkeypatch.setattr(gpu_text, "gpu_text_benchmark", on_cpu)
    monkeypatch.setattr(gpu_text, "ALONE_SECONDS", 1e-9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = "--device cuda --sentences 4 --max-new-tokens 5 --rounds 1 --alone 2"
    output = tmp_path / "text.json"
    given = [model_folder, "--input", text, *options.split(), "--systems", "engine-short,engine-dense"]
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *given, "--json", output)
    assert code == 0, said
    assert "3 lines" in said
    found = GpuTextBenchmark.read(output)
    assert list(found.systems) == ["engine-short", "engine-dense"]
    assert found.systems["engine-short"].latency_ms is not None
    assert found.alone == 1
    assert any("had no time for more" in limit for limit in found.limited)


def test_unknown_systems_are_refused(model_folder, text):
    with pytest.raises(ValueError, match="`systems`: expected some of engine-short, .* got 'gpu'"):
        gpu_text_benchmark(TextFile(str(model_folder), text), ["gpu"])
