"""Gates that read several encoder layers or through a small network: what they compute, in every family and path."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.core.gates import GATES, STATES, LearnedGate
from l0drop.core.readers import LayersGate, NetworkGate
from l0drop.models.config import patterns
from l0drop.recipe.model import LEARNED_GATES
from l0drop.training.compiled import Compiled
from tests.models import zoo

ARGUMENTS = {"layers": {"layers": [0, 2]}, "network": {"hidden": 5}}
BATCH = zoo.ragged_batch()
MASK = BATCH["attention_mask"].bool()


def model_of(gate: str, family: str = "marian", **config):  # type: ignore[no-untyped-def]
    """A random model whose gate closes half of the gates of the batch."""
    base = zoo.build(family)
    base.config.encoder_layerdrop = 0.0
    return spread(sparsify(base, L0DropConfig(gate=gate, gate_args=ARGUMENTS[gate], **config)))


@torch.no_grad()
def spread(model):  # type: ignore[no-untyped-def]
    for parameter in model.gate.parameters():
        parameter.normal_(0, 1, generator=torch.Generator().manual_seed(5))
    score = scores(model)
    model.gate.weight.mul_(3 / score[MASK].std())
    model.gate.bias.fill_(-float(scores(model)[MASK].quantile(0.5)) - 2.398)
    return model


def scores(model) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """[B, N], log α without the bias, as the formulas say."""
    states = model.base_class.get_encoder(model)(**BATCH, output_hidden_states=True).hidden_states
    normal = [F.layer_norm(state, state.shape[-1:]) for state in states]
    gate = model.gate
    if isinstance(gate, LayersGate):
        return sum(normal[layer] @ w for layer, w in zip(gate.reads, gate.weight.chunk(len(gate.reads)), strict=True))
    return F.gelu(normal[-1] @ gate.inner.weight.T + gate.inner.bias) @ gate.weight


def test_recipes_know_the_gates_that_learn() -> None:
    assert patterns
    assert all(issubclass(GATES.class_of(name), LearnedGate) for name in LEARNED_GATES)


@pytest.mark.parametrize("gate", ARGUMENTS)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_log_alpha_is_the_formula_in_every_path(gate: str, family: str, tmp_path: Path) -> None:
    model = model_of(gate, family)
    with torch.no_grad():
        expected = scores(model) + model.gate.bias
        encoded = model.get_encoder()(**BATCH)
    torch.testing.assert_close(encoded.gates.log_alpha[MASK], expected[MASK], atol=1e-4, rtol=1e-4)
    assert encoded.hidden_states is None, "nobody asked for them"
    assert len(model.get_encoder()(**BATCH, output_hidden_states=True).hidden_states) == 3
    dropped = float((encoded.gates.values == 0)[MASK].float().mean())
    assert 0.4 < dropped < 0.6
    generation = {"num_beams": 2, "max_new_tokens": 8}
    tokens = model.generate(**BATCH, **generation)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.config.l0drop.gate_args == ARGUMENTS[gate]
    assert torch.equal(loaded.generate(**BATCH, **generation), tokens)
    found = Engine(loaded).generate(BATCH["input_ids"], BATCH["attention_mask"], **generation)
    assert torch.equal(found.sequences, tokens)
    assert torch.equal(found.kept, (encoded.gates.values != 0))


@pytest.mark.parametrize("gate", ARGUMENTS)
def test_training_reaches_every_parameter_and_all_controls_work(gate: str) -> None:
    model = sparsify(
        zoo.build("marian"), L0DropConfig(gate=gate, gate_args=ARGUMENTS[gate], target_sparsity=0.3, always_keep=(5,))
    )
    assert all(float(e.gates.min()) == 1 for e in model.explain(**BATCH)), "it starts open"
    gates, rest = model.parameter_groups(1e-3)[1]["params"], model.parameter_groups(1e-3)[0]["params"]
    assert {id(p) for p in gates} == {id(p) for p in model.gate.parameters()}
    assert len(gates) + len(rest) == len([p for p in model.parameters() if p.requires_grad])
    spread(model).train()
    keys = torch.arange(len(MASK))
    output = model(**BATCH, labels=BATCH["input_ids"], noise_key=keys)
    output.loss.backward()
    assert all(float(parameter.grad.abs().max()) > 0 for parameter in model.gate.parameters())
    assert torch.equal(model(**BATCH, labels=BATCH["input_ids"], noise_key=keys).gates.values, output.gates.values)
    model.settle(True)
    settled = model(**BATCH, labels=BATCH["input_ids"]).gates.values
    assert torch.equal(settled, model.eval()(**BATCH, labels=BATCH["input_ids"]).gates.values)
    assert model.steer(output.sparsity) > 0
    with pytest.warns(UserWarning, match="the calibration opened"):
        assert model.calibrate([BATCH]).after == pytest.approx(0.3, abs=0.02)
    with model.dial(keep=0.25):
        few = model.generate(**BATCH, max_new_tokens=4)
    kept = Engine(model).generate(BATCH["input_ids"], BATCH["attention_mask"], keep=0.25, max_new_tokens=4)
    assert torch.equal(kept.sequences, few)
    with model.dial(shift=20.0):
        assert int(model.get_encoder()(**BATCH).dropped.sum()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("gate", ARGUMENTS)
def test_compiled_gates_equal_plain_ones_for_every_scale_of_the_noise(
    gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale is an input of the compiled code, so one compilation serves all."""
    compiled: list[int] = []

    def backend(graph, inputs, **options):  # type: ignore[no-untyped-def]
        compiled.append(len(inputs))
        return graph

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda code, **options: compile_(code, backend=backend, dynamic=True))
    torch.compiler.reset()
    model = model_of(gate).train()
    wrapped = Compiled(model)
    wrapped.calls.clear()  # the gate alone
    keys = torch.arange(len(MASK))
    for scale in (1.0, 0.7, 0.2):
        model.scale_noise(scale)
        plain = model(**BATCH, labels=BATCH["input_ids"], noise_key=keys)
        with wrapped.running():
            found = model(**BATCH, labels=BATCH["input_ids"], noise_key=keys)
        torch.testing.assert_close(found.gates.values, plain.gates.values)
        torch.testing.assert_close(found.loss, plain.loss)
    assert len(compiled) == 1
    model.scale_noise(None)
    whole = model(**BATCH, labels=BATCH["input_ids"], noise_key=keys)
    assert not torch.allclose(whole.gates.values, plain.gates.values)


def test_the_last_layer_alone_is_the_learned_gate() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 5, 8)
    mask = torch.ones(2, 5, dtype=torch.bool)
    one, learned = LayersGate(8, [3]).eval(), LearnedGate(8, normalize=True).eval()
    torch.nn.init.normal_(one.weight)
    learned.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(x, mask, hints={STATES: x[:, :, None]}).log_alpha, learned(x, mask).log_alpha)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gate": "layers"}, "gate_args: LayersGate does not take"),
        ({"gate": "layers", "gate_args": {"layers": []}}, "layers: expected a list of different layers"),
        ({"gate": "layers", "gate_args": {"layers": [1, 1]}}, "layers: expected a list of different layers"),
        ({"gate": "layers", "gate_args": {"layers": [1, -1]}}, "layers: expected a list of different layers"),
        ({"gate": "layers", "gate_args": {"layers": [1, 3]}}, "has 2 layers, so there is no layer 3"),
        ({"gate": "network", "gate_args": {"hidden": 0}}, "hidden: expected a positive whole number"),
        ({"gate": "network", "gate_args": {"hidden": 4}, "layerwise": True}, "only the learned gate works between"),
    ],
)
def test_wrong_arguments_are_named(config, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        sparsify(zoo.build("marian"), L0DropConfig(**config))


def test_states_that_are_missing_or_cut_are_named() -> None:
    model = model_of("layers")
    plain = model.base_class.get_encoder(model)
    with pytest.raises(ValueError, match=r"encoder_outputs: LayersGate reads .*\[0, 2\].* output_hidden_states=True"):
        model.generate(encoder_outputs=plain(**BATCH), attention_mask=BATCH["attention_mask"], max_new_tokens=4)
    given = plain(**BATCH, output_hidden_states=True)
    tokens = model.generate(encoder_outputs=given, attention_mask=BATCH["attention_mask"], max_new_tokens=4)
    assert torch.equal(tokens, model.generate(**BATCH, max_new_tokens=4))
    with pytest.raises(ValueError, match="gate: set encoder_layerdrop to 0; LayersGate needs the layers"):
        sparsify(zoo.build("m2m100"), L0DropConfig(gate="layers", gate_args={"layers": [1]}))
    between = sparsify(zoo.build("marian"), L0DropConfig(layerwise=True))
    with pytest.raises(ValueError, match="layerwise: removes rows inside the encoder, so LayersGate"):
        between.gate = LayersGate(zoo.WIDTH, [1, 2])


def test_only_gates_that_read_one_layer_are_captured_with_the_encoder() -> None:
    assert NetworkGate(8).graph_key() == (2 / 3, 0.1)
    assert LayersGate(8, [1, 2]).graph_key() is None
