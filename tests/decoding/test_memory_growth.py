"""The memory of a process stays flat while an engine decodes batches of many shapes.

oneDNN and FBGEMM compile a kernel for every shape of a product and keep it, so the engine has to use few shapes.
"""

import ctypes
import multiprocessing
import random
from pathlib import Path

import pytest
import torch
import transformers as hf

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.decoding import packed_memory
from l0drop.decoding.linear import int8_engines

BATCHES = 3_000
MOST_MEBIBYTES = {20: 150, 1_000: 40}
"""By how much the process may grow from this batch to the last one."""

HEAD_WIDTH = 64
"""As in a Transformer base: kernels depend on it."""

pytestmark = pytest.mark.slow


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"d_model": 2 * HEAD_WIDTH, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 1024}
    depth = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    tokens = {"vocab_size": 100, "decoder_vocab_size": 100, "pad_token_id": 0, "eos_token_id": 2}
    start = {"decoder_start_token_id": 1, "forced_eos_token_id": None, "activation_function": "relu"}
    base = hf.MarianMTModel(hf.MarianConfig(**sizes, **depth, **heads, **tokens, **start))
    return sparsify(base.eval(), L0DropConfig())


def mebibytes() -> float:
    """The resident set of this process, without freed memory that the allocator holds back."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def growth(kind: str) -> dict[int, float]:
    """Mebibytes by which the process grows from these batches to the last one."""
    torch.set_num_threads(1)
    packed_memory.is_faster = lambda threads: True
    engine = Engine(small_model(), dtype="int8" if kind.startswith("int8") else None)
    engine.linears = kind
    choice, before = random.Random(1), {}
    for number in range(BATCHES):
        if number in MOST_MEBIBYTES:
            before[number] = mebibytes()
        longest = choice.choice((40, 300, 800))
        lengths = [choice.randint(2, longest) for _ in range(choice.randint(1, 12))]
        input_ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, length in zip(input_ids, lengths, strict=True):
            row[:length] = torch.randint(3, 100, (length,))
        beams, steps = choice.randint(1, 5), choice.randint(2, 5)
        engine.generate(
            input_ids, (input_ids > 0).long(), num_beams=beams, max_new_tokens=steps, dense=choice.random() < 0.5
        )
    after = mebibytes()
    return {number: after - size for number, size in before.items()}


@pytest.mark.skipif("fbgemm" not in int8_engines(), reason="this torch has no FBGEMM")
@pytest.mark.parametrize("kind", ["packed", "int8-fbgemm-onednn-bf16"])
def test_memory_stays_flat_over_batches_of_many_shapes(kind):
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # this process may hold many kernels already
        found = pool.apply(growth, (kind,))
    assert all(found[number] < most for number, most in MOST_MEBIBYTES.items()), found
