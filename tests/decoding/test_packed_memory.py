"""Attention to a packed memory compared with attention in float64, and an engine with it compared to one without."""

import pytest
import torch

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.decoding import loop as loop_module
from l0drop.decoding import packed_memory as module
from l0drop.decoding import stack as stack_module
from l0drop.decoding.packed_memory import PackedMemory
from tests.models import zoo

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
GATINGS = ("zero", "mask", "weight", "mean")
MANY_EOS = [2, *range(20, 32)]


def memory(sentences=3, heads=2, rows=21, width=8):
    """Keys, values and bias, with padding and a row that represents several."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(sentences, heads, rows, width, generator=generator) for _ in range(2))
    bias = torch.zeros(sentences, rows)
    bias[:, 0] = 3.0
    bias[1, 12:] = -torch.inf
    return keys, values, bias


def slow_attention(query_RW, keys, values, bias):
    """Reference: [R, H·D] in float64, one sentence, beam and head at a time."""
    sentences, heads, _, width = keys.shape
    query = query_RW.double().view(sentences, -1, heads, width)
    out = torch.empty_like(query)
    for b in range(sentences):
        for k in range(query.shape[1]):
            for h in range(heads):
                weights = (keys[b, h].double() @ query[b, k, h] + bias[b]).softmax(0)
                out[b, k, h] = weights @ values[b, h].double()
    return out.view(query_RW.shape)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize("beams", [1, 4, 5])
def test_attention_equals_the_slow_one(dtype, error, beams):
    keys, values, bias = memory()
    packed = PackedMemory.of(keys.to(dtype), values.transpose(2, 3).to(dtype), bias, 4)
    query = torch.randn(3 * beams, 16)
    found, slow = packed.attend(query), slow_attention(query, keys, values, bias)
    assert found.dtype == torch.float32
    assert float((found - slow).norm() / slow.norm()) < error


def test_sentences_and_rows_can_be_removed():
    keys, values, bias = memory()
    kept = PackedMemory.of(keys, values.transpose(2, 3), bias, 4).keep(torch.tensor([0, 2]), 17)
    query = torch.randn(8, 16)
    slow = slow_attention(query, keys[[0, 2], :, :17], values[[0, 2], :, :17], bias[[0, 2], :17])
    torch.testing.assert_close(kept.attend(query).double(), slow, atol=1e-5, rtol=1e-5)
    assert kept.nbytes == 2 * 2 * 2 * 32 * 8 * 4, "17 rows are padded to 32"


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("family", ["marian", "mbart"])
def test_engine_gives_the_same_tokens(family, gating, monkeypatch):
    """While finished sentences leave and the memory gets shorter."""
    model = zoo.spread_gates(sparsify(zoo.build(family).float(), L0DropConfig(gating=gating)))
    batch = zoo.ragged_batch(lengths=(24, 17, 9, 20, 24, 3, 5, 11), seed=8)
    settings = {"num_beams": 4, "max_new_tokens": 18, "eos_token_id": MANY_EOS, "num_return_sequences": 4}
    inputs = (batch["input_ids"], batch["attention_mask"])
    kept, keep = [], PackedMemory.keep
    monkeypatch.setattr(loop_module, "SHRINK_AT", 1.0)
    monkeypatch.setattr(PackedMemory, "keep", lambda *given: kept.append(1) or keep(*given))
    found = {}
    for packs in (False, True):
        monkeypatch.setattr(module, "is_faster", lambda threads, packs=packs: packs)
        monkeypatch.setattr(stack_module, "PACK_FROM", 1)
        monkeypatch.setattr(stack_module, "PACK_FROM_ALL", 1)
        found[packs] = Engine(model, linears="packed").generate(*inputs, **settings)
        assert bool(kept) == packs
    assert torch.equal(found[True].sequences, found[False].sequences)
    torch.testing.assert_close(found[True].scores, found[False].scores, atol=1e-4, rtol=0)


def test_short_memories_are_not_packed(monkeypatch):
    """Packing them costs as much as it saves."""
    packed = []
    real = PackedMemory.of
    monkeypatch.setattr(module, "is_faster", lambda threads: True)
    monkeypatch.setattr(
        PackedMemory, "of", staticmethod(lambda *given: packed.append(given[0].shape[2]) or real(*given))
    )
    engine = Engine(zoo.build("marian").float(), linears="packed")
    monkeypatch.setattr(stack_module, "PACK_FROM", 41)
    monkeypatch.setattr(stack_module, "PACK_FROM_ALL", 82)
    for sentences, rows in ((9, 40), (1, 50), (2, 41)):
        engine.generate(torch.full((sentences, rows), 9), num_beams=3, max_new_tokens=3)
    assert set(packed) == {41}, "few rows of a sentence, few rows in all, and enough of both"
    packed.clear()
    engine.generate(torch.full((2, 41), 9), num_beams=1, max_new_tokens=3)
    assert not packed, "a single query reads keys and values in float32 as fast without"


def test_int8_engine_keeps_its_memory_in_bfloat16(monkeypatch):
    monkeypatch.setattr(module, "is_faster", lambda threads: True)
    monkeypatch.setattr(stack_module, "PACK_FROM", 1)
    monkeypatch.setattr(stack_module, "PACK_FROM_ALL", 1)
    model = zoo.build("marian").float()
    batch = zoo.ragged_batch()
    engine = Engine(model, dtype="int8")
    sizes, scores = [], []
    for kind in (engine.linears.removesuffix("-bf16"), f"{engine.linears.removesuffix('-bf16')}-bf16"):
        engine.linears = kind
        found = engine.generate(batch["input_ids"], batch["attention_mask"], num_beams=3, max_new_tokens=6)
        sizes.append(engine.memory_bytes)
        scores.append(found.scores)
    assert sizes[0] == 2 * sizes[1]
    assert torch.allclose(*scores, rtol=0.05)


@pytest.mark.parametrize(("packed", "expected"), [(1.0, True), (1.9, False)])
def test_a_measurement_decides(packed, expected, monkeypatch):
    times = iter([packed, 2.0])
    monkeypatch.setattr(module, "_seconds", lambda run: next(times))
    module.is_faster.cache_clear()
    assert module.is_faster(1) == expected
    module.is_faster.cache_clear()
