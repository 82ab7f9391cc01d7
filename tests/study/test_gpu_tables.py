"""The tables of decoding speed on a GPU."""

import pytest

from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
from result_tables.gpu import gpu_profile_table, gpu_tables, gpu_text_table, short_name
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
