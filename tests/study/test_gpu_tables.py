"""The tables of decoding speed on a GPU."""

from pathlib import Path

import pytest

from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
from l0drop.runs.precision import Precision
from result_tables.gpu import (
    gpu_profile_table,
    gpu_tables,
    gpu_text_table,
    gpu_whisper_tables,
    precision_tables,
    short_name,
)
from results import published_gpu_tables
from tests.runs.partial import filled

LEAST = {"cross_cache": 6_000, "self_cache": 1_000, "weights": 2_000, "logits": 1_000}


def system(milliseconds: float, **others: object) -> dict[str, object]:
    median = {"encode": 0.002, "decode": milliseconds * 0.064, "end_to_end": 0.0}
    return {"milliseconds_per_step": milliseconds, "median": median, "peak_memory": 3 << 20, **others}


def measured() -> GpuDecodeBenchmark:
    shape = {
        "shape": {"batch": 10, "source": 2048, "target": 64, "dropped": 0.715},
        "systems": {
            "engine-short": system(0.5, least_bytes=LEAST, times_floor=2.5),
            "ct2-bfloat16": system(1.6),
        },
        "ratios": [{"phase": "decode", "system": "ct2-bfloat16", "by": "engine-short", "times": 3.2}],
    }
    return filled(GpuDecodeBenchmark, {"shapes": {"b10-n2048": shape}})


def test_a_row_per_shape_names_the_shape_and_the_systems() -> None:
    tables = gpu_tables(measured())
    assert all(len(table.head) <= 6 for table in tables.values())
    assert all(table.rows[0][0] == "10 × 2,048 tokens, 71.5% dropped" for table in tables.values())
    assert "decode: engine (short) over CTranslate2 bfloat16" in tables["gpu"].head
    assert list(tables["gpu"].rows[0][1:]) == ["", "3.20", "", "", ""]
    assert list(tables["gpu-steps"].rows[0][1:]) == ["0.50", "", "1.60", "", ""]
    assert list(tables["gpu-encode"].rows[0][1:]) == ["2.00", "", "2.00", "", ""]
    assert list(tables["gpu-floor"].rows[0][1:]) == ["", "", "0.200", "2.50"]
    assert list(tables["gpu-memory"].rows[0][1:]) == ["3.00", "", "3.00", "", ""]


def test_text_has_a_row_per_system() -> None:
    result = filled(
        GpuTextBenchmark,
        {
            "systems": {
                "engine-short": {"sentences_per_second": 4321.2, "latency_ms": {"p50": 12.34, "p99": 20}},
                "hf-dense": {"sentences_per_second": 100.0},
            },
            "ratios": [{"phase": "all", "system": "hf-dense", "by": "engine-short", "times": 43.2}],
        },
    )
    assert gpu_text_table(result).rows == [
        ["engine (short)", "4,321", "-", "-", "12.3", "20.0"],
        ["`generate` (dense)", "100", "43.20", "-", "-", "-"],
    ]


def whispers() -> GpuDecodeBenchmark:
    def shape(whisper: str, batch: int, beams: int, **others: object) -> dict[str, object]:
        sizes = {"batch": batch, "source": 1500, "target": 40, "dropped": 0.75}
        return {"shape": sizes, "whisper": whisper, "generation": {"num_beams": beams}, **others}

    def engine(search: float) -> dict[str, object]:
        median = {"encode": 0.02, "search": search, "decode": search + 0.01, "end_to_end": search + 0.03}
        return {"median": median, "peak_memory": 5 << 20}

    systems = {"engine-short": engine(0.1), "engine-dense": engine(0.2)}
    ratio = {"phase": "search", "system": "engine-dense", "by": "engine-short", "times": 2.0}
    large = shape("large-v3", 32, 5, systems=systems, ratios=[ratio])
    slow = {"median": {"encode": 0.02, "decode": 1.5, "end_to_end": 1.52}, "peak_memory": 7 << 20}
    over = {"phase": "end_to_end", "system": "hf-dense", "by": "engine-short", "times": 9.5}
    tiny = shape("tiny", 1, 1, systems={"hf-dense": slow}, ratios=[over])
    greedy = shape("large-v3", 32, 1, systems={"engine-short": engine(0.05)})
    return filled(GpuDecodeBenchmark, {"shapes": {"a": large, "b": greedy, "c": tiny}})


def test_whispers_begin_with_the_smallest() -> None:
    tables = gpu_whisper_tables(whispers())
    labels = ["tiny, 1 clip, beam 1", "large-v3, 32 clips, beam 1", "large-v3, 32 clips, beam 5"]
    for table in tables.values():
        assert len(table.head) <= 6
        assert [row[0] for row in table.rows] == labels
    assert tables["gpu-whisper"].head[1:] == [
        "search: short over dense", "encode + decode: engine (short) over `generate` (dense)",
    ], "columns without a number are left out"  # fmt: skip
    assert tables["gpu-whisper"].rows[2][1:] == ["2.00", ""]
    assert tables["gpu-whisper-ms"].rows[0][1:] == ["-", "-", "-", "-", "1,500"]
    assert tables["gpu-whisper-ms"].rows[2][1:] == ["20.0", "100", "200", "110", "-"]
    assert tables["gpu-whisper-memory"].rows[2][1:] == ["5.00", "5.00", "-"]


def rounded() -> Precision:
    score = {"name": "BLEU", "value": 37.9, "signature": "s"}
    same = {"dtype": "float32", "memory": "dense", "same": 1.0, "score": score}
    other = {
        "dtype": "bfloat16", "memory": "short", "same": 0.9, "same_as_dense": 0.95, "score": {**score, "value": 37.8},
        "difference": -0.1, "differing": {**score, "value": 81.25}, "changed": {"random-256": 0.01, "alone": 0.02},
    }  # fmt: skip
    batches = {"own": {"sentences": 9, "largest": 9}, "random-256": {"sentences": 9, "largest": 250}}
    return filled(
        Precision,
        {
            "reference": "float32",
            "rows": [{**same, "changed": {"random-256": 0.0, "alone": 0.0}}, other],
            "batches": {**batches, "alone": {"sentences": 4, "largest": 1}},
        },
    )


def test_rounding_has_a_row_per_type_and_memory() -> None:
    tables = precision_tables(rounded(), "precision-gpu")
    assert list(tables["precision-gpu"].head[1:3]) == ["outputs as in float32", "chrF of the other outputs"]
    assert tables["precision-gpu"].rows == [
        ["float32, dense", "100.0%", "-", "37.90", "+0.00", "-"],
        ["bfloat16, short", "90.0%", "81.2", "37.80", "-0.10", "95.0%"],
    ]
    assert tables["precision-gpu-batches"].head[1:] == ["random batches of 250", "decoded alone"]
    assert tables["precision-gpu-batches"].rows[1] == ["bfloat16, short", "1.0%", "2.0%"]


def test_tables_are_those_of_the_files_in_the_folder(tmp_path: Path) -> None:
    assert published_gpu_tables(tmp_path) == {}
    whispers().write(tmp_path / "decode-gpu-whisper.json")
    rounded().write(tmp_path / "precision-gpu.json")
    filled(GpuTextBenchmark, {}).write(tmp_path / "decode-gpu-sentences.json")
    assert list(published_gpu_tables(tmp_path)) == [
        *("gpu-sentences", "gpu-whisper", "gpu-whisper-ms", "gpu-whisper-memory"),
        *("precision-gpu", "precision-gpu-batches"),
    ]


def test_a_profile_lists_the_longest_kernels_and_the_others() -> None:
    def steps(*kernels: tuple[str, float]) -> dict[str, object]:
        busy = sum(time for _, time in kernels)
        listed = [{"name": name, "microseconds": time} for name, time in kernels]
        return {"step": busy + 1, "busy": busy, "floor": 7.0, "kernels": listed}

    few = [(f"void lib::kernel_{number}<int>(float*)", float(20 - number)) for number in range(16)]
    profile = {"microseconds_per_step": {"a, dense": steps(*few, ("others", 3.0)), "a, short": steps(few[0], few[0])}}
    table = gpu_profile_table(profile, ["a"])
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert list(table.head) == ["µs per step", "a, dense", "a, short"]
    assert rows["whole step"] == ["204", "41"]
    assert rows["floor by bytes"] == ["7", "7"]
    assert rows["`kernel_0`"] == ["20.0", "40.0"]
    assert "`kernel_14`" not in rows
    assert rows["other kernels"] == ["14.0", "0.0"]


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void at::native::(anonymous namespace)::softmax<float, (int)3>(at::X<float>, int)", "softmax"),
        ("void cutlass::Kernel2<cutlass_80_bf16_tn>(cutlass_80::Params)", "Kernel2"),
        ("_attend_kernel", "_attend_kernel"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
    ],
)
def test_kernels_have_short_names(kernel: str, short: str) -> None:
    assert short_name(kernel) == short
