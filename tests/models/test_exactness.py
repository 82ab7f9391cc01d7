"""Exactness: a new model equals its base model, and the short memory equals the full gated memory."""

import pytest
import torch

from l0drop import L0DropConfig, sparsify
from l0drop.core.memory import GATINGS, has_shared_row
from tests.models import zoo

LABELS = torch.randint(3, zoo.VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(("family", "attention"), zoo.BOTH_ATTENTIONS)
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_a_new_model_equals_its_base_model(family: str, attention: str, gating: str) -> None:
    base, batch = zoo.build(family, attention), zoo.ragged_batch()
    sparse = sparsify(base, L0DropConfig(gating=gating))
    expected = base(**batch, labels=LABELS)
    found = sparse(**batch, labels=LABELS)
    scale = float(expected.logits.abs().max())
    assert float((found.logits - expected.logits).abs().max()) <= 1e-6 * scale
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-5)
    assert float(found.sparsity) == 0
    for beams in (1, 4):
        tokens = [m.generate(**batch, num_beams=beams, max_new_tokens=10, do_sample=False) for m in (base, sparse)]
        assert torch.equal(*tokens)


@pytest.mark.parametrize(("family", "attention"), zoo.BOTH_ATTENTIONS)
@torch.no_grad()
def test_a_disabled_model_equals_its_base_model_bit_for_bit(
    family: str, attention: str, fixed_gate: torch.nn.Module
) -> None:
    base, batch = zoo.build(family, attention), zoo.ragged_batch()
    sparse = sparsify(base, L0DropConfig(enabled=False))
    sparse.gate = fixed_gate
    assert torch.equal(sparse(**batch, labels=LABELS).logits, base(**batch, labels=LABELS).logits)
    assert torch.equal(sparse.generate(**batch, max_new_tokens=8), base.generate(**batch, max_new_tokens=8))
    sparse.config.l0drop.enabled = True
    assert not torch.equal(sparse(**batch, labels=LABELS).logits, base(**batch, labels=LABELS).logits)


@pytest.mark.parametrize(("family", "attention"), zoo.BOTH_ATTENTIONS)
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_short_memory_equals_full_gated_memory(
    family: str, attention: str, gating: str, fixed_gate: torch.nn.Module
) -> None:
    batch = zoo.ragged_batch()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model = sparsify(zoo.build(family, attention).to(dtype), L0DropConfig(gating=gating))
        model.gate = fixed_gate
        short = model(**batch, labels=LABELS)
        with model.dial(dense=True):
            dense = model(**batch, labels=LABELS)
        kept = fixed_gate.values.ne(0) & batch["attention_mask"].bool()
        assert short.encoder_last_hidden_state.shape[1] == int(kept.sum(1).max()) + has_shared_row(gating)
        assert dense.encoder_last_hidden_state.shape[1] == 24
        assert float(short.sparsity) == pytest.approx(
            1 - (int(kept.sum()) + (not has_shared_row(gating))) / int(batch["attention_mask"].sum()), abs=1e-6
        )
        scale = max(1.0, float(dense.logits.abs().max()))
        assert float((short.logits - dense.logits).abs().max()) <= tolerance * scale
    for beams in (1, 4):  # the model is in float64 here
        arguments = {"num_beams": beams, "max_new_tokens": 12, "do_sample": False}
        tokens = model.generate(**batch, **arguments)
        with model.dial(dense=True):
            assert torch.equal(tokens, model.generate(**batch, **arguments))


@pytest.mark.parametrize("family", zoo.FAMILIES)
@torch.no_grad()
def test_zero_gating_matches_the_paper(family: str, fixed_gate: torch.nn.Module) -> None:
    """The dense memory against the base model run on encodings × gate with the plain padding mask."""
    base, batch = zoo.build(family).double(), zoo.ragged_batch()
    model = sparsify(base, L0DropConfig(gating="zero"))
    model.gate = fixed_gate
    encoded = base.get_encoder()(**batch)
    gate = fixed_gate.values * batch["attention_mask"]
    encoded.last_hidden_state = encoded.last_hidden_state * gate[..., None]
    expected = base(attention_mask=batch["attention_mask"], encoder_outputs=encoded, labels=LABELS).logits
    found = model(**batch, labels=LABELS).logits
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_without_the_count_logits_are_wrong(fixed_gate: torch.nn.Module) -> None:
    batch = zoo.ragged_batch()
    model = sparsify(zoo.build("marian"))
    model.gate = fixed_gate
    memory = model.get_encoder()(**batch)
    right = model(encoder_outputs=memory, labels=LABELS).logits
    with model.dial(dense=True):
        torch.testing.assert_close(right, model(**batch, labels=LABELS).logits, atol=1e-5, rtol=1e-5)
    memory.memory_bias = memory.memory_bias.clamp(max=0)
    assert float((model(encoder_outputs=memory, labels=LABELS).logits - right).abs().max()) > 0.05


@pytest.mark.parametrize("family", ["marian", "t5"])
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_a_sentence_does_not_depend_on_its_batch(family: str, gating: str) -> None:
    lengths = (24, 17, 9, 20, 24, 3)
    batch = zoo.ragged_batch(lengths)
    model = sparsify(zoo.build(family).double(), L0DropConfig(gating=gating))
    zoo.spread_gates(model)
    together = model.explain(**batch)
    tokens = model.generate(**batch, num_beams=3, max_new_tokens=10)
    assert sum(0 < len(e.kept) < len(e.gates) for e in together) >= 3
    for row, length in enumerate(lengths):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        (explanation,) = model.explain(**alone)
        torch.testing.assert_close(explanation.gates, together[row].gates, atol=1e-10, rtol=0)
        torch.testing.assert_close(explanation.log_alpha, together[row].log_alpha, atol=1e-10, rtol=0)
        assert explanation.kept == together[row].kept
        own = model.generate(**alone, num_beams=3, max_new_tokens=10)[0]
        assert tokens[row, : len(own)].tolist() == own.tolist()


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_dial_acts_as_defined(gating: str) -> None:
    batch = zoo.ragged_batch()
    model = sparsify(zoo.build("bart").double(), L0DropConfig(gating=gating))
    zoo.spread_gates(model)
    own = model.explain(**batch)
    for share in (0.3, 0.7):
        with model.dial(keep=share):
            for before, turned in zip(own, model.explain(**batch), strict=True):
                wanted = max(1, round(share * len(before.gates)))
                order = before.log_alpha.argsort(descending=True, stable=True)
                assert turned.kept == sorted(order[:wanted].tolist())
                expected = torch.where(before.gates == 0, 1.0, before.gates)[turned.kept]
                torch.testing.assert_close(turned.gates[turned.kept], expected)
    with model.dial(max_memory=6):
        memory = model.get_encoder()(**batch)
        assert memory.last_hidden_state.shape[1] <= 6
    previous = [-1] * 6
    for shift in (-8.0, -2.0, 0.0, 2.0, 8.0):
        with model.dial(shift=shift):
            kept = [len(e.kept) for e in model.explain(**batch)]
        assert all(now >= before for now, before in zip(kept, previous, strict=True))
        previous = kept
    with model.dial(keep=0.4), model.dial(keep=0.4, dense=True):
        dense = model(**batch, labels=LABELS).logits
    with model.dial(keep=0.4):
        torch.testing.assert_close(model(**batch, labels=LABELS).logits, dense, atol=1e-10, rtol=1e-10)
    assert [e.kept for e in model.explain(**batch)] == [e.kept for e in own], "leaving the block restores the gates"
