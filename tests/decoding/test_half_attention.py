"""The bfloat16 attention of int8 engines in the encoder, compared with float64."""

import pytest
import torch

from l0drop import Engine
from l0drop.decoding import half_attention as module
from tests.models import zoo


def slow_attention(q, k, v, bias_BS):
    """Reference: [B, T, H, D] in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k)
    if bias_BS is not None:
        scores = scores + bias_BS.double()[:, None, None]
    return torch.einsum("bhts,bhsd->bthd", scores.softmax(-1), v)


@pytest.mark.parametrize(("queries", "padding"), [(300, 0), (300, 40), (7, 3)])
def test_result_is_attention_rounded_to_bfloat16(queries, padding):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, queries, 8, generator=generator) for _ in range(3))
    q = q * 8**-0.5
    bias = torch.zeros(2, queries)
    if padding:
        bias[1, -padding:] = -torch.inf
    found = module._bfloat16_attention(q, k, v, bias.bfloat16() if padding else None).double()
    slow = slow_attention(q, k, v, bias if padding else None)
    assert float((found - slow).norm() / slow.norm()) < 0.01
    if padding:
        v[1, :, -padding:] = 100.0
        assert torch.equal(module._bfloat16_attention(q, k, v, bias.bfloat16()).double(), found), (
            "padding must have no weight"
        )


def test_few_sizes_reach_the_product(monkeypatch):
    """oneDNN keeps a kernel for every size."""
    sizes, real = set(), torch.mm
    monkeypatch.setattr(module.torch, "mm", lambda a, b: sizes.add((a.shape, b.shape)) or real(a, b))
    for length in range(513, 769, 5):
        q, k, v = (torch.randn(1, 1, length, 8) * 8**-0.25 for _ in range(3))
        found = module._bfloat16_attention(q, k, v, None).double()
        slow = slow_attention(q, k, v, None)
        assert float((found - slow).norm() / slow.norm()) < 0.01
    assert len(sizes) == 2 * 4, "one block of queries, and key counts of 576, 640, 704 and 768"


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_int8_engine_uses_it_for_long_sources(family, monkeypatch):
    """With Hugging Face's mask; T5 has position biases and uses torch's attention."""
    calls = []
    real = module._bfloat16_attention
    monkeypatch.setattr(module, "_bfloat16_attention", lambda *arguments: calls.append(1) or real(*arguments))
    monkeypatch.setattr(module, "MIN_KEYS", 4)
    model, batch = zoo.build(family).float(), zoo.ragged_batch()
    inputs = batch["input_ids"], batch["attention_mask"]
    engine = Engine(model, dtype="int8")
    engine.linears = engine.linears.removesuffix("-bf16")
    plain = engine.encode(*inputs, dense=True).memory.states
    assert not calls
    engine.linears += "-bf16"
    halves = engine.encode(*inputs, dense=True).memory.states
    assert bool(calls) == (family != "t5")
    real_tokens = inputs[1].bool()
    difference = (halves - plain)[real_tokens].norm() / plain[real_tokens].norm()
    assert (0 < difference < 0.05) if calls else difference == 0
    assert model.config._attn_implementation == "sdpa", "the setting must be restored"


def test_short_sources_use_torchs_attention(monkeypatch):
    monkeypatch.setattr(module, "_bfloat16_attention", None)
    model, batch = zoo.build("marian").float(), zoo.ragged_batch()
    engine = Engine(model, dtype="int8")
    engine.linears = f"{engine.linears.removesuffix('-bf16')}-bf16"
    engine.encode(batch["input_ids"], batch["attention_mask"])


def test_a_measurement_decides_whether_it_is_used(monkeypatch):
    module.is_faster.cache_clear()
    monkeypatch.setattr(module, "_seconds", lambda q, k: 1.0 if q.dtype == torch.bfloat16 else 2.0)
    assert module.is_faster(1)
    module.is_faster.cache_clear()
    monkeypatch.setattr(module, "_seconds", lambda q, k: 1.0)
    assert not module.is_faster(1)
    module.is_faster.cache_clear()
