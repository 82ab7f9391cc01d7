"""The benchmark of Whisper on a GPU, on a CPU with tiny models: everything but the GPU's own clock and memory."""

import statistics
from dataclasses import replace

import pytest
import torch

from l0drop.bench import gpu_speech
from l0drop.bench.gpu_race import Conditions
from l0drop.bench.gpu_speech import BATCHES, BEAMS, COMPARED, NAMES, chosen_whispers, gpu_speech_benchmark
from l0drop.bench.speech_workloads import SIZES, RandomWhisper
from l0drop.report.gpu_benchmark import encode_table, memory_table, ratio_table, shape_table, step_table
from l0drop.runs.benchmark import Shape
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark
from l0drop.runs.table import as_markdown
from tests.bench.test_decoding import l0drop
from tests.bench.test_speech import TINY

SHAPE = Shape(batch=3, source=40, target=7, dropped=0.75)
CONDITIONS = Conditions("cpu", torch.float32, rounds=2, copied=1 << 20)
SYSTEMS = ("engine-short", "engine-dense", "hf-dense", "ct2-float32")
QUIET = {"say": lambda _: None}


def tiny(size="tiny", beams=2, **sizes):
    return RandomWhisper(size, replace(SHAPE, **sizes), beams, {**TINY, "vocab_size": 51_865})


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture(scope="module")
def result(saved):
    workloads = {"one": tiny(), "greedy": tiny(beams=1, batch=1), "other": tiny("turbo")}
    return gpu_speech_benchmark(workloads, SYSTEMS, CONDITIONS, save=saved.append, **QUIET)


def test_every_system_finds_the_tokens_of_generate(result):
    for shape in result.shapes.values():
        assert list(shape.systems) == list(SYSTEMS)
        assert not shape.left_out
        for name in ("engine-short", "hf-dense"):
            same = shape.systems[name].same_tokens
            assert (same.reference, same.sentences) == ("engine-dense", shape.shape.batch)


def test_a_step_is_part_of_the_search(result):
    for shape in result.shapes.values():
        for name, system in shape.systems.items():
            phase = "search" if name.startswith("engine") else "decode"
            assert {phase, "encode", "decode", "end_to_end"} == set(system.seconds)
            rounds = 1 if name == "hf-dense" else 2
            assert all(len(times) == rounds for times in system.seconds.values())
            assert system.milliseconds_per_step == pytest.approx(1000 * statistics.median(system.seconds[phase]) / 7)
            assert system.seconds[phase][0] <= system.seconds["decode"][0]
            parts = zip(*(system.seconds[phase] for phase in ("encode", "decode", "end_to_end")), strict=True)
            assert all(encode + decode == pytest.approx(both) for encode, decode, both in parts)


def test_the_memory_is_short(result):
    shape = result.shapes["one"]
    assert shape.longest_memory == 11
    short, dense = (shape.systems[name].least_bytes for name in ("engine-short", "engine-dense"))
    assert short.cross_cache / dense.cross_cache == 11 / 40
    assert short.weights == dense.weights
    assert shape.systems["hf-dense"].least_bytes is None


def test_ratios_are_those_of_the_rounds(result):
    shape = result.shapes["one"]
    for phase in ("search", "decode", "end_to_end"):
        dense, short = (shape.systems[name].seconds[phase] for name in ("engine-dense", "engine-short"))
        expected = statistics.median(a / b for a, b in zip(dense, short, strict=True))
        assert shape.times(phase, "engine-dense", "engine-short") == pytest.approx(expected)
    named = [(one.phase, one.system, one.by) for one in shape.ratios]
    assert named == [pair for pair in COMPARED if {pair[1], pair[2]} <= set(SYSTEMS)]


def test_results_are_saved_after_every_workload(result, saved, tmp_path):
    assert [list(one.shapes) for one in saved] == [["one"], ["one", "greedy"], ["one", "greedy", "other"]]
    result.write(tmp_path / "whisper.json")
    assert GpuDecodeBenchmark.read(tmp_path / "whisper.json") == result == saved[-1]
    assert [shape.whisper for shape in result.shapes.values()] == ["tiny", "tiny", "turbo"]


def test_weights_are_drawn_in_the_type_of_the_benchmark():
    base = tiny().base("cpu", torch.bfloat16)
    assert {parameter.dtype for parameter in base.parameters()} == {torch.bfloat16}
    found = gpu_speech_benchmark({"one": tiny()}, None, replace(CONDITIONS, dtype=torch.bfloat16, rounds=1), **QUIET)
    assert found.dtype == "bfloat16"
    assert list(found.shapes["one"].systems) == ["engine-short", "engine-dense", "hf-dense"]


def test_ctranslate2_takes_weights_in_low_precision():
    conditions = replace(CONDITIONS, dtype=torch.bfloat16, rounds=1)
    found = gpu_speech_benchmark({"one": tiny()}, ["ct2-float32"], conditions, **QUIET)
    assert list(found.shapes["one"].systems) == ["ct2-float32"]


def test_a_system_that_fails_is_left_out_with_the_reason():
    systems = ("engine-short", "ct2-float16")  # a CPU has no efficient float16
    found = gpu_speech_benchmark({"one": tiny()}, systems, replace(CONDITIONS, rounds=1), **QUIET).shapes["one"]
    assert list(found.systems) == ["engine-short"]
    assert "float16" in found.left_out["ct2-float16"]


def test_workloads_have_names():
    every = chosen_whispers(["whisper"])
    assert len(every) == len(SIZES) * len(BATCHES) * len(BEAMS)
    assert next(iter(every)) == "large-v3-b32-k5"
    for name, workload in every.items():
        assert name == f"{workload.size}-b{workload.shape.batch}-k{workload.beams}"
        assert (workload.shape.source, workload.shape.target, workload.shape.dropped) == (1500, 40, 0.75)
    assert every == chosen_whispers(NAMES)
    assert list(chosen_whispers(["whisper-small"], {"batch": 2, "target": 3}, (4,))) == ["small-b2-k4"]


def test_tables_show_every_workload(result):
    for make in (ratio_table, step_table, encode_table, memory_table):
        _, table = make(result)
        assert [row[0] for row in table.rows] == list(result.shapes)
        assert len(table.head) <= 6
    title, table = shape_table("one", result.shapes["one"], "float32")
    assert title == "one: 3 x 40 rows, 75.0% dropped, 7 new tokens, beam 2, float32"
    assert all(name in as_markdown(table) for name in SYSTEMS)


def test_the_command_measures_whispers(tmp_path, monkeypatch, capsys):
    def small(workloads, systems, conditions, **settings):
        conditions = replace(CONDITIONS, rounds=conditions.rounds)
        cut = {name: replace(one, changes={**TINY, "vocab_size": 51_865}) for name, one in workloads.items()}
        return gpu_speech_benchmark(cut, systems, conditions, **settings)

    monkeypatch.setattr(gpu_speech, "gpu_speech_benchmark", small)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    output = tmp_path / "whisper.json"
    options = "--device cuda --shape whisper-large-v3,whisper-tiny --source 40 --target 3 --batch 2 --rounds 1"
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *options.split(), "--json", output)
    assert code == 0, said
    assert "large-v3-b2-k5: 2 x 40 rows" in said
    found = GpuDecodeBenchmark.read(output)
    assert list(found.shapes) == ["large-v3-b2-k5", "large-v3-b2-k1", "tiny-b2-k5", "tiny-b2-k1"]


def test_wrong_names_are_refused(monkeypatch, capsys):
    with pytest.raises(ValueError, match="`systems`: expected some of engine-short, .* got 'engine-int8-short'"):
        gpu_speech_benchmark({"one": tiny()}, ["engine-int8-short"], CONDITIONS)
    for shapes, message in (
        ("whisper-huge", "shape: expected whisper or some of whisper-tiny"),
        ("whisper-tiny,b1-n400", "shape: expected gpu or some of b1-n400"),
    ):
        code, said = l0drop(monkeypatch, capsys, "bench", "decode", "--device", "cuda", "--shape", shapes)
        assert code == 2
        assert message in said
