"""The benchmarks that only a GPU can run whole: its clock, its memory, its captured steps."""

import pytest
import torch

pytest.importorskip("l0drop", reason="needs the dependencies of l0drop")

from l0drop.bench.gpu_race import Conditions
from l0drop.bench.gpu_speech import USUAL, gpu_speech_benchmark
from l0drop.bench.speech_workloads import RandomWhisper
from l0drop.runs.benchmark import Shape

SMALL = {
    "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whispers_are_timed_in_captured_steps(dtype, recwarn):
    shape = Shape(batch=3, source=120, target=8, dropped=0.75)
    workloads = {f"k{beams}": RandomWhisper("tiny", shape, beams, SMALL) for beams in (1, 5)}
    conditions = Conditions(dtype=dtype, rounds=2, copied=1 << 20)
    found = gpu_speech_benchmark(workloads, None, conditions, say=lambda _: None)
    assert not any("no captured step" in str(warning.message) for warning in recwarn)
    for one in found.shapes.values():
        assert tuple(one.systems) == USUAL, one.left_out
        for system in one.systems.values():
            assert system.peak_memory > 0
            assert system.median["decode"] >= system.median.get("search", 0.0)
        if dtype == torch.float32:
            same = one.systems["engine-short"].same_tokens
            assert (same.reference, same.sentences) == ("engine-dense", 3)
