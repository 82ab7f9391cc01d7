"""The benchmark of decoding on a GPU, on a CPU with a tiny model: everything but the GPU's own clock and memory."""

import json
import statistics
import time
from dataclasses import replace

import pytest
import torch

from l0drop import Engine
from l0drop.bench import gpu_decoding, timing
from l0drop.bench.gpu_decoding import COMPARED, Setup, gpu_decode_benchmark
from l0drop.bench.gpu_race import copy_rate, least_bytes, same_tokens
from l0drop.bench.peers import EnginePeer
from l0drop.bench.timing import Stopwatch
from l0drop.bench.workloads import GPU_SHAPES, RandomModel, chosen_gpu_shapes
from l0drop.report.gpu_benchmark import (
    check_table,
    encode_table,
    floor_table,
    memory_table,
    ratio_table,
    shape_table,
    step_table,
)
from l0drop.runs.benchmark import Shape
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark
from l0drop.runs.table import as_markdown
from profile_step import profile_on_gpu
from tests.bench.test_decoding import TINY, l0drop

SMALL = Shape(batch=5, source=40, target=9, dropped=0.6)
MANY = Shape(batch=65, source=6, target=2, dropped=0.5)
SETUP = Setup("cpu", torch.float32, rounds=3, slow_rounds=2, changes=TINY, copied=1 << 20)
SYSTEMS = ("engine-short", "engine-dense", "ct2-float32", "hf-short", "hf-dense")


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture(scope="module")
def result(saved):
    shapes = {"small": SMALL, "many": MANY}
    return gpu_decode_benchmark(shapes, SYSTEMS, SETUP, SMALL, say=lambda _: None, save=saved.append)


def test_every_system_is_timed_in_every_round(result):
    systems = result.shapes["small"].systems
    assert list(systems) == list(SYSTEMS)
    for name, system in systems.items():
        rounds = 2 if name.startswith("hf") else 3
        assert {phase: len(times) for phase, times in system.seconds.items()} == dict.fromkeys(system.median, rounds)
        parts = zip(*(system.seconds[phase] for phase in ("encode", "decode", "end_to_end")), strict=True)
        assert all(encode + decode == pytest.approx(both) for encode, decode, both in parts)
        assert system.median["decode"] == statistics.median(system.seconds["decode"])
        assert system.milliseconds_per_step == pytest.approx(1000 * system.median["decode"] / 9)


def test_generate_does_not_run_on_many_sentences(result):
    assert list(result.shapes["many"].systems) == ["engine-short", "engine-dense", "ct2-float32"]


def test_systems_agree_in_float32(result):
    agreement = dict(result.check.agreement)
    assert agreement.pop("hf-dense") is None
    assert set(agreement) == {"engine-short", "engine-dense", "hf-short", "ct2-float32"}
    for found in agreement.values():
        assert (found.same + found.tied, found.different) == (5, 0)
    same = result.shapes["small"].systems["engine-short"].same_tokens
    assert (same.reference, same.sentences, same.tokens) == ("engine-dense", 5, 1.0)


def test_ratios_are_taken_within_rounds(result):
    shape = result.shapes["small"]
    slow, fast = (shape.systems[name].seconds["end_to_end"] for name in ("hf-dense", "engine-short"))
    expected = statistics.median(a / b for a, b in zip(slow, fast, strict=False))
    assert shape.times("end_to_end", "hf-dense", "engine-short") == pytest.approx(expected)
    assert shape.times("decode", "ct2-bfloat16", "engine-short") is None
    assert [(one.phase, one.system, one.by) for one in shape.ratios] == [
        pair for pair in COMPARED if {pair[1], pair[2]} <= set(SYSTEMS)
    ]


def test_the_floor_counts_every_byte_once():
    model, batch = RandomModel(SMALL, changes=TINY).load()
    (batch,) = batch
    rows = int(Engine(model).encode(batch.input_ids).rows.max())
    assert rows == 17
    found = least_bytes(model, SMALL, rows, beams=4)
    layer = 2 * 32 * 4  # keys and values of a position, in float32
    assert found.cross_cache == 5 * 17 * 2 * layer
    assert found.self_cache == 5 * 4 * (1 + 9) / 2 * 2 * layer
    assert found.logits == 2 * 5 * 4 * 120 * 4
    per_layer = 6 * 32**2 + 6 * 32 + 2 * 32 * 64 + 64 + 32 + 3 * 2 * 32
    assert found.weights == 4 * (2 * per_layer + 120 * 32)
    assert found.total == found.cross_cache + found.self_cache + found.logits + found.weights


def test_the_short_memory_has_the_rows_of_the_floor(result):
    shape = result.shapes["small"]
    assert shape.longest_memory == 17
    short, dense = (shape.systems[name].least_bytes.cross_cache for name in ("engine-short", "engine-dense"))
    assert short / dense == 17 / 40
    for system in (shape.systems["engine-short"], shape.systems["engine-dense"]):
        floor = 1000 * system.least_bytes.total / result.bytes_per_second
        assert system.times_floor == pytest.approx(system.milliseconds_per_step / floor)


def test_a_system_that_fails_is_left_out_with_the_reason():
    systems = ("engine-dense", "ct2-float16")  # a CPU has no efficient float16
    said = []
    found = gpu_decode_benchmark({"small": SMALL}, systems, replace(SETUP, rounds=1), None, say=said.append)
    shape = found.shapes["small"]
    assert list(shape.systems) == ["engine-dense"]
    assert "float16" in shape.left_out["ct2-float16"]
    assert any("ct2-float16 is left out" in line for line in said)
    assert "ct2-float16 is left out" in shape_table("small", shape, "float32")[1].note
    assert found.check is None


def test_a_system_that_fails_in_a_round_is_left_out(monkeypatch):
    """After its warm-up, as when memory runs out once all systems are there."""
    calls = []

    def decode(self, memory, **changes):
        calls.append(self.dense)
        if self.dense and calls.count(True) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, memory, **changes)

    real = EnginePeer.decode
    monkeypatch.setattr(EnginePeer, "decode", decode)
    systems = ("engine-short", "engine-dense")
    found = gpu_decode_benchmark({"small": SMALL}, systems, SETUP, None, say=lambda _: None).shapes["small"]
    assert list(found.systems) == ["engine-short"]
    assert len(found.systems["engine-short"].seconds["decode"]) == 3
    assert found.systems["engine-short"].same_tokens is None
    assert "out of memory" in found.left_out["engine-dense"]
    assert calls.count(True) == 4


def test_results_are_saved_after_every_shape(result, saved, tmp_path):
    assert [list(one.shapes) for one in saved] == [[], ["small"], ["small", "many"]]
    assert saved[-1] == result
    result.write(tmp_path / "decode.json")
    assert GpuDecodeBenchmark.read(tmp_path / "decode.json") == result
    content = json.loads((tmp_path / "decode.json").read_text(encoding="utf-8"))
    assert content.keys() >= {"shapes", "check", "bytes_per_second", "dtype", "device", "torch", "commit", "version"}


def test_same_tokens():
    found = same_tokens([[1, 2, 3], [4, 5]], [[1, 9, 3], [4, 5]], "other")
    assert (found.reference, found.sentences, found.tokens) == ("other", 1, 0.8)
    assert same_tokens([[1]], [[1, 2]], "other").tokens == 0.5


def test_a_copy_reads_and_writes():
    assert copy_rate("cpu", 1 << 20) > 1e8


def test_clocks_are_read_when_the_gpu_has_finished(monkeypatch):
    waited = []
    monkeypatch.setattr(timing, "wait_for", lambda device: waited.append(device.type) or time.sleep(0.01))
    with (watch := Stopwatch("cuda")):
        pass
    assert waited == ["cuda", "cuda"]
    assert watch.seconds.wall >= 0.01


def test_shapes_have_names():
    assert chosen_gpu_shapes(["gpu"]) == GPU_SHAPES
    assert list(GPU_SHAPES) == ["b1-n400", "b32-n30", "b10-n400", "b10-n2048", "b64-n2048", "b256-n2048"]
    assert chosen_gpu_shapes(["b1-n400"], {"target": 3})["b1-n400"].target == 3
    for name, shape in GPU_SHAPES.items():
        assert name == f"b{shape.batch}-n{shape.source}"


def test_tables_show_every_shape(result):
    for make in (ratio_table, step_table, encode_table, memory_table, floor_table):
        _, table = make(result)
        assert [row[0] for row in table.rows] == ["small", "many"]
        assert len(table.head) <= 6
    _, floors = floor_table(result)
    dense = result.shapes["small"].systems["engine-dense"]
    assert float(floors.rows[0][2]) == pytest.approx(dense.times_floor, abs=0.01)
    _, table = check_table(result.check)
    assert "5/5" in as_markdown(table)
    shown = as_markdown(shape_table("small", result.shapes["small"], "float32")[1])
    assert all(name in shown for name in SYSTEMS)


def test_the_command_measures_shapes(tmp_path, monkeypatch, capsys):
    def tiny(shapes, systems, setup, **settings):
        setup = replace(SETUP, rounds=setup.rounds, slow_rounds=setup.slow_rounds)
        return gpu_decode_benchmark(shapes, systems, setup, SMALL, **settings)

    monkeypatch.setattr(gpu_decoding, "gpu_decode_benchmark", tiny)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    output = tmp_path / "gpu.json"
    options = (
        "--device cuda --shape b1-n400,b32-n30 --source 12 --target 2 --rounds 1 --systems engine-short,engine-dense"
    )
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *options.split(), "--json", output)
    assert code == 0, said
    assert "Tokens in float32" in said
    assert "b32-n30: 32 x 12 tokens, 46.7% dropped" in said
    found = GpuDecodeBenchmark.read(output)
    assert list(found.shapes) == ["b1-n400", "b32-n30"]
    assert found.shapes["b1-n400"].shape == Shape(1, 12, 2, 0.476)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--device cuda --shape mt", "shape: expected gpu or some of b1-n400"),
        ("--device cuda --audio x", "audio: not measured on a GPU"),
        ("--device cuda --sentences 3", "sentences: needs a model folder"),
        ("folder --device cuda --input x --batch 3", "batch: is for random weights"),
        ("folder --device cuda", "input: missing; name a text file"),
        ("--device cuda --input x", "input: needs a model folder"),
        ("--device tpu", "device: expected cpu or cuda, got 'tpu'"),
    ],
)
def test_errors_name_the_argument(arguments, message, monkeypatch, capsys):
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *arguments.split())
    assert code == 2
    assert message in said


def test_a_gpu_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", "--device", "cuda")
    assert code == 2
    assert "torch finds no CUDA GPU" in said


def test_the_profile_lists_what_a_step_does(capsys):
    result = profile_on_gpu({"small": SMALL}, "cpu", torch.float32, TINY, 1 << 20)
    assert list(result["microseconds_per_step"]) == ["small, dense", "small, short"]
    for profile in result["microseconds_per_step"].values():
        assert sum(one["microseconds"] for one in profile["kernels"]) == pytest.approx(profile["busy"])
        assert sum(one["share"] for one in profile["kernels"]) == pytest.approx(1)
        assert profile["floor"] == pytest.approx(1e6 * profile["bytes"]["total"] / result["bytes_per_second"])
    assert "small, short: " in capsys.readouterr().out


def test_unknown_systems_are_refused():
    with pytest.raises(ValueError, match="`systems`: expected some of engine-short, .* got 'engine-int8-short'"):
        gpu_decode_benchmark({"small": SMALL}, ["engine-int8-short"], SETUP)
