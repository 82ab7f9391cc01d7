"""`fix_gates`: in every family only the decoder learns, and the gates of training are those of decoding."""

import pytest
import torch

from l0drop import Gates, L0DropConfig, sparsify
from tests.models import zoo

BATCH = zoo.ragged_batch()
LABELS = torch.randint(3, zoo.VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(9))


def gated(family: str, **config):  # type: ignore[no-untyped-def]
    """With dropout."""
    model = zoo.spread_gates(sparsify(zoo.build(family), L0DropConfig(**config)))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
        for name, value in (("dropout", 0.3), ("layerdrop", 0.0)):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, value)
    return model


def same(ours: Gates, theirs: Gates) -> None:
    """Up to rounding, because decoding removes rows between layers."""
    torch.testing.assert_close(ours.values, theirs.values)
    assert torch.equal(ours.values == 0, theirs.values == 0)


CASES = [(family, {}) for family in zoo.FAMILIES] + [
    ("marian", {"layerwise": True, "gating": gating}) for gating in ("zero", "mask")
]


@pytest.mark.parametrize(("family", "config"), CASES)
def test_encoder_and_gates_stay_and_decide_as_in_decoding(family: str, config: dict[str, object]) -> None:
    model = gated(family, **config)
    encoder = model.base_class.get_encoder(model)
    before_decoder = {id(p) for module in (encoder, model.gate, model.inner_gates) for p in module.parameters()}
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    decoding = model.get_encoder()(**BATCH)
    model.fix_gates()
    model.train()
    output = model(**BATCH, labels=LABELS)
    same(output.gates, decoding.gates)
    if output.layer_gates is not None:
        for ours, theirs in zip(output.layer_gates, decoding.layer_gates, strict=True):
            same(ours, theirs)
    assert not torch.equal(model(**BATCH, labels=LABELS).logits, output.logits), "the decoder has its dropout"
    output.loss.backward()
    learned = {id(p) for p in model.parameters() if p.grad is not None}
    assert learned
    assert not learned & before_decoder
    assert learned == trainable - before_decoder
    assert {id(p) for p in model.parameters() if p.requires_grad} == learned
    model.fix_gates(False)
    assert {id(p) for p in model.parameters() if p.requires_grad} == trainable
    model(**BATCH, labels=LABELS).loss.backward()
    assert any(p.grad is not None for p in encoder.parameters())
    assert encoder.training
    assert model.gate.training


def test_gates_stay_fixed_whoever_switches_the_mode() -> None:
    model = gated("marian").train()
    model.fix_gates()
    for mode in (True, False, True):
        model.train(mode)
        assert model.training == mode
        assert not any(module.training for module in model.base_class.get_encoder(model).modules())
        assert not model.gate.training
    assert model.get_decoder().training
    model.fix_gates()  # a second time
    model.fix_gates(False)
    assert model.gate.training


def test_what_was_frozen_before_stays_frozen() -> None:
    model = gated("marian")
    frozen = model.get_encoder().layers[0]
    frozen.requires_grad_(False)
    model.fix_gates()
    model.fix_gates(False)
    assert not any(p.requires_grad for p in frozen.parameters())
