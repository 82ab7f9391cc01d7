"""Gates between the encoder's layers: `zero` as in the paper, `mask` with rows removed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq

from l0drop import L0DropConfig, sparsify
from l0drop.core import hard_concrete
from l0drop.core.penalty import penalty
from tests.models import whispers, zoo

LABELS = torch.randint(3, whispers.TEXT, (6, 7), generator=torch.Generator().manual_seed(9))


def layered(family: str, gating: str, *, closed: float = 0.3, **options):  # type: ignore[no-untyped-def]
    """A float64 model whose inner and last gates each close some rows."""
    model = sparsify(zoo.build(family).double(), L0DropConfig(gating=gating, layerwise=True, **options))
    return zoo.spread_gates(model, closed)


def zeroed_with_hooks(model, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:  # type: ignore[no-untyped-def]
    """The encoder as the paper describes it, layer by layer, with hooks that multiply by the gate."""
    mask, seen, handles = batch["attention_mask"], [], []
    layers = list(model.model.encoder.layers)

    def multiply(gate):  # type: ignore[no-untyped-def]
        def hook(module, args, output):  # type: ignore[no-untyped-def]
            values = hard_concrete.test_time_gate(output @ gate.weight.double() + gate.bias.double(), 0.1) * mask
            seen.append(values)
            return output * values[..., None]

        return hook

    for layer, gate in zip(layers, (*model.inner_gates, model.gate), strict=True):
        handles.append(layer.register_forward_hook(multiply(gate)))
    try:
        return model.model.encoder(**batch).last_hidden_state, seen
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("family", ["marian", "bart"])
@torch.no_grad()
def test_zero_multiplies_after_every_layer_and_keeps_rows(family: str) -> None:
    model, batch = layered(family, "zero"), zoo.ragged_batch()
    expected_states, seen = zeroed_with_hooks(model, batch)
    with model.dial(dense=True):
        memory = model.get_encoder()(**batch)
    torch.testing.assert_close(memory.last_hidden_state, expected_states, atol=1e-10, rtol=1e-10)
    assert len(memory.layer_gates) == model.config.encoder_layers
    for gates, expected in zip(memory.layer_gates, seen, strict=True):
        torch.testing.assert_close(gates.values, expected, atol=1e-10, rtol=0)
    assert 0 < int((seen[0] == 0).sum()) < seen[0].numel()
    assert int(((seen[0] == 0) & (seen[1] != 0)).sum()) > 0, "with zero a row may come back"


@pytest.mark.parametrize("family", ["marian", "bart"])
@torch.no_grad()
def test_removing_rows_gives_the_same_tokens_as_masking_them(family: str) -> None:
    model, batch = layered(family, "mask"), zoo.ragged_batch()
    lengths = []
    handle = model.model.encoder.layers[-1].register_forward_hook(lambda m, a, out: lengths.append(out.shape[1]))
    short, tokens = model(**batch, labels=LABELS), model.generate(**batch, num_beams=4, max_new_tokens=10)
    with model.dial(dense=True):
        dense = model(**batch, labels=LABELS)
        assert torch.equal(tokens, model.generate(**batch, num_beams=4, max_new_tokens=10))
    handle.remove()
    assert lengths[0] < lengths[-1] == 24, "the last layer ran on fewer rows"
    torch.testing.assert_close(short.logits, dense.logits, atol=1e-10, rtol=1e-10)
    for one, other in zip(short.layer_gates, dense.layer_gates, strict=True):
        assert one.values.shape == batch["input_ids"].shape, "gates come back at full length"
        torch.testing.assert_close(one.values, other.values, atol=1e-10, rtol=0)
    inner, last = short.layer_gates
    assert not bool(((inner.values == 0) & (last.values != 0)).any()), "removed rows do not come back"
    assert bool(((inner.values != 0).sum(1) >= 1).all())


@torch.no_grad()
def test_mask_keeps_one_row_among_those_still_open() -> None:
    model, batch = layered("marian", "mask"), zoo.ragged_batch()
    model.gate.bias.fill_(-100.0)
    output = model(**batch, labels=LABELS)
    inner, last = output.layer_gates
    assert (last.values != 0).sum(1).tolist() == [1] * 6
    assert bool((inner.values[last.values != 0] != 0).all())
    model.inner_gates[0].bias.fill_(-100.0)
    output = model(**batch, labels=LABELS)
    assert (output.layer_gates[0].values != 0).sum(1).tolist() == [1] * 6
    with model.dial(dense=True):
        torch.testing.assert_close(model(**batch, labels=LABELS).logits, output.logits, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("gating", ["zero", "mask"])
def test_penalty_is_the_sum_over_layers(gating: str) -> None:
    """With `mask` a later gate's open probability is multiplied by the earlier ones'."""
    model, batch = layered("bart", gating), zoo.ragged_batch()
    with torch.no_grad():
        output = model(**batch, labels=LABELS)
    mask = batch["attention_mask"].bool()
    total = sum(penalty(g.open_probability, mask).mean() for g in output.layer_gates)
    torch.testing.assert_close(output.penalty, total)
    inner, last = output.layer_gates
    if gating == "mask":
        assert bool((last.open_probability <= inner.open_probability).all())
        model.gate.bias.data.fill_(100.0)
        with torch.no_grad():
            opened = model(**batch, labels=LABELS).layer_gates
        alive = opened[0].values != 0
        torch.testing.assert_close(opened[1].open_probability[alive], opened[0].open_probability[alive])


def test_open_probabilities_multiply_in_training_too() -> None:
    """With constant gates the second open probability is the product on every real row, whatever was sampled."""
    model, batch = layered("bart", "mask").train(), zoo.ragged_batch()
    for gate, bias in zip((*model.inner_gates, model.gate), (0.0, -0.5), strict=True):
        torch.nn.init.zeros_(gate.weight)
        torch.nn.init.constant_(gate.bias, bias)
    output = model(**batch, labels=LABELS)
    inner, last = output.layer_gates
    first, second = (hard_concrete.open_probability(torch.tensor(b).double(), 2 / 3, 0.1) for b in (0.0, -0.5))
    real = batch["attention_mask"].bool()
    assert bool(((inner.values == 0) & real).any()), "samples did close rows"
    torch.testing.assert_close(last.open_probability[real], (first * second).expand(int(real.sum())))
    torch.testing.assert_close(output.penalty, first + first * second)


@pytest.mark.parametrize("gating", ["zero", "mask"])
def test_sparsity_in_training_counts_test_time_gates(gating: str) -> None:
    model, batch = layered("marian", gating), zoo.ragged_batch()
    with torch.no_grad():
        for bias in (0.0, 50.0, -50.0):
            for gate in (*model.inner_gates, model.gate):
                gate.weight.zero_()
                gate.bias.fill_(bias)
            seen = [float(model.train(mode)(**batch, labels=LABELS).sparsity) for mode in (True, False)]
            assert seen[0] == pytest.approx(seen[1], abs=1e-6), bias


@pytest.mark.parametrize("gating", ["zero", "mask"])
def test_training_reaches_every_gate_with_and_without_checkpointing(gating: str) -> None:
    batch = zoo.ragged_batch()
    keys = torch.arange(6)
    gradients = []
    for checkpointing in (False, True):
        model = layered("marian", gating).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch, labels=LABELS, noise_key=keys).loss.backward()
        gradients.append([gate.weight.grad for gate in (*model.inner_gates, model.gate)])
    for plain, recomputed in zip(*gradients, strict=True):
        assert float(plain.abs().max()) > 0
        torch.testing.assert_close(recomputed, plain)


@torch.no_grad()
def test_layers_use_different_noise() -> None:
    model = layered("bart", "zero").train()
    for gate in (*model.inner_gates, model.gate):
        gate.weight.zero_()
        gate.bias.zero_()
    output = model(**zoo.ragged_batch(), labels=LABELS, noise_key=torch.arange(6))
    inner, last = output.layer_gates
    assert not torch.equal(inner.values, last.values)


@torch.no_grad()
def test_dial_and_calibration_act_on_the_last_gate() -> None:
    model, batch = layered("marian", "mask"), zoo.ragged_batch()
    before = model(**batch, labels=LABELS).layer_gates
    with model.dial(keep=0.2):
        turned = model(**batch, labels=LABELS).layer_gates
    assert torch.equal(before[0].values, turned[0].values)
    kept = (turned[1].values != 0).sum(1).tolist()
    assert kept == [max(1, round(0.2 * n)) for n in batch["attention_mask"].sum(1).tolist()]
    inner = model.inner_gates[0].threshold
    target = float(model(**batch, labels=LABELS).sparsity) + 0.2
    result = model.calibrate([batch], target=target, force=True)
    assert result.threshold > inner
    assert model.inner_gates[0].threshold == inner
    assert float(model(**batch, labels=LABELS).sparsity) == pytest.approx(result.after, abs=1e-6)


@torch.no_grad()
def test_calibration_opens_gates_between_layers_if_the_last_gate_cannot_reach_the_target() -> None:
    model, batch = layered("marian", "mask", closed=0.5), zoo.ragged_batch()
    gone = float(
        (model(**batch, labels=LABELS).layer_gates[0].values == 0)[batch["attention_mask"].bool()].float().mean()
    )
    weights = {name: weight.clone() for name, weight in model.named_parameters()}
    inner = model.inner_gates[0].threshold
    result = model.calibrate([batch], target=gone / 2)
    assert abs(result.after - gone / 2) < 0.03, "there are only 40 tokens"
    assert result.before > gone - 1e-6
    assert model.inner_gates[0].threshold == pytest.approx(inner + result.inner_moved)
    assert result.inner_moved < 0
    output = model(**batch, labels=LABELS)
    assert float(output.sparsity) == pytest.approx(result.after, abs=1e-6)
    with model.dial(dense=True):
        torch.testing.assert_close(model(**batch, labels=LABELS).logits, output.logits, atol=1e-10, rtol=1e-10)
    assert all(torch.equal(weights[name], weight) for name, weight in model.named_parameters())


@pytest.mark.parametrize(("gating", "target"), [("zero", 0.1), ("zero", 0.5), ("mask", 0.5)])
@torch.no_grad()
def test_calibration_leaves_gates_between_layers_alone_if_the_last_gate_suffices(gating: str, target: float) -> None:
    model, batch = layered("marian", gating), zoo.ragged_batch()
    inner = model.inner_gates[0].threshold
    result = model.calibrate([batch], target=target)  # with few tokens, the sparsity jumps over the target
    assert result.inner_moved == 0
    assert model.inner_gates[0].threshold == inner


@torch.no_grad()
def test_calibration_leaves_gates_between_layers_alone_if_they_cannot_help() -> None:
    model, batch = layered("marian", "mask", closed=0.5), zoo.ragged_batch()
    for gate in model.inner_gates:
        gate.weight.zero_()
        gate.bias.fill_(-1e4)  # closed at any threshold
    inner = model.inner_gates[0].threshold
    result = model.calibrate([batch], target=0.3)
    assert not result.met
    assert result.inner_moved == 0
    assert model.inner_gates[0].threshold == inner


@torch.no_grad()
def test_tokens_of_always_keep_survive_every_layer() -> None:
    batch = zoo.ragged_batch()
    token = int(batch["input_ids"][0, 4])
    model = layered("bart", "mask", closed=0.8, always_keep=(token,))
    output = model(**batch, labels=LABELS)
    marked = batch["input_ids"] == token
    for gates in output.layer_gates:
        assert bool((gates.values[marked] == 1).all())
    with model.dial(dense=True):
        torch.testing.assert_close(model(**batch, labels=LABELS).logits, output.logits, atol=1e-10, rtol=1e-10)


def test_unsupported_uses_of_layerwise_are_refused() -> None:
    with pytest.raises(ValueError, match="layerwise: .* not weight"):
        L0DropConfig(gating="weight", layerwise=True)
    with pytest.raises(
        ValueError,
        match="layerwise: supported for MarianMTModel, BartForConditionalGeneration, WhisperForConditionalGeneration, "
        "not for T5",
    ):
        sparsify(zoo.build("t5"), L0DropConfig(layerwise=True))
    base = zoo.build("marian")
    base.config.encoder_layerdrop = 0.1
    with pytest.raises(ValueError, match="encoder_layerdrop"):
        sparsify(base, L0DropConfig(layerwise=True))
    model = layered("marian", "zero")
    with pytest.raises(ValueError, match=r"encoder_outputs: .*get_encoder"), torch.no_grad():
        model(encoder_outputs=zoo.build("marian").double().get_encoder()(**zoo.ragged_batch()), labels=LABELS)


# --- gates at chosen layers ---------------------------------------------------------------------------------------


def chosen(family: str, gating: str, layers: list[int], closed: float = 0.3):  # type: ignore[no-untyped-def]
    """A float64 model with gates at these layers, and a batch for it."""
    config = L0DropConfig(gating=gating, layerwise=layers)
    if family == "whisper":
        model = whispers.spread_gates(sparsify(whispers.build().double(), config), closed)
        return model, {"input_features": whispers.features().double()}
    return zoo.spread_gates(sparsify(zoo.build(family).double(), config), closed), zoo.ragged_batch()


@pytest.mark.parametrize("layers", [[0], [1], [0, 1]])
@pytest.mark.parametrize("family", ["marian", "bart", "whisper"])
@torch.no_grad()
def test_removal_at_chosen_layers_equals_masking(family: str, layers: list[int]) -> None:
    model, batch = chosen(family, "mask", layers)
    assert [gate.normalize for gate in model.inner_gates] == [layer == 0 or family == "whisper" for layer in layers]
    encoder = model.base_class.get_encoder(model)
    rows: list[list[int]] = [[] for _ in encoder.layers]
    handles = [
        layer.register_forward_hook(lambda m, a, out, own=own: own.append(out.shape[1]))
        for layer, own in zip(encoder.layers, rows, strict=True)
    ]
    short = model(**batch, labels=LABELS)
    with model.dial(dense=True):
        dense = model(**batch, labels=LABELS)
    for handle in handles:
        handle.remove()
    for number, (fewer, full) in enumerate(rows, 1):
        assert full == 24
        assert (fewer < 24) == (number > layers[0]), "layers behind the first gate run on fewer rows"
    torch.testing.assert_close(short.logits, dense.logits, atol=1e-10, rtol=1e-10)
    assert len(short.layer_gates) == len(layers) + 1
    for one, other in zip(short.layer_gates, dense.layer_gates, strict=True):
        torch.testing.assert_close(one.values, other.values, atol=1e-10, rtol=0)
    tokens = model.generate(**batch, num_beams=3, max_new_tokens=8)
    with model.dial(dense=True):
        assert torch.equal(tokens, model.generate(**batch, num_beams=3, max_new_tokens=8))


@pytest.mark.parametrize("family", ["marian", "whisper"])
@torch.no_grad()
def test_all_layers_in_a_list_are_true(family: str) -> None:
    layers = list(range(1, (3 if family == "whisper" else 2) + 1))
    listed, batch = chosen(family, "mask", layers)
    base = (whispers.build() if family == "whisper" else zoo.build(family)).double()
    every = sparsify(base, L0DropConfig(gating="mask", layerwise=True))
    every.load_state_dict(listed.state_dict())
    assert torch.equal(every(**batch, labels=LABELS).logits, listed(**batch, labels=LABELS).logits)


@pytest.mark.parametrize("family", ["bart", "whisper"])
def test_penalty_dial_and_calibration_work_at_chosen_layers(family: str) -> None:
    model, batch = chosen(family, "mask", [0])
    with torch.no_grad():
        output = model(**batch, labels=LABELS)
        mask, _ = model.source_rows(batch.get("attention_mask"), output.gates.values)
        total = sum(penalty(g.open_probability, mask).mean() for g in output.layer_gates)
        torch.testing.assert_close(output.penalty, total)
        with model.dial(keep=0.2):
            kept = (model(**batch, labels=LABELS).gates.values != 0).sum(1).tolist()
        assert kept == [max(1, round(0.2 * n)) for n in mask.sum(1).tolist()]
        result = model.calibrate([batch], target=float(output.sparsity) + 0.1, force=True)
        assert float(model(**batch, labels=LABELS).sparsity) == pytest.approx(result.after, abs=1e-6)
        gone = float((output.layer_gates[0].values == 0)[mask].double().mean())
        result = model.calibrate([batch], target=gone / 2)
        assert result.inner_moved < 0
        assert result.after == pytest.approx(gone / 2, abs=0.04)
    model.train()(**batch, labels=LABELS).loss.backward()
    assert all(float(gate.weight.grad.abs().max()) > 0 for gate in (*model.inner_gates, model.gate))


@torch.no_grad()
def test_chosen_layers_are_saved(tmp_path: Path) -> None:
    model, batch = chosen("whisper", "mask", [2, 0])
    assert model.inner_layers == (0, 2)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path, dtype=torch.float64)
    assert loaded.config.l0drop == model.config.l0drop
    for name, parameter in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], parameter), name
    # where weights lie in memory decides how products over them are summed
    found, expected = (one(**batch, labels=LABELS).logits for one in (loaded, model))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("layers", [[], [1, 1], [-1], [True], ["1"], "all", [0.5]])
def test_bad_lists_of_layers_are_refused(layers: object) -> None:
    with pytest.raises(ValueError, match="layerwise: expected True, False or a list of different layers"):
        L0DropConfig(layerwise=layers)  # type: ignore[arg-type]


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="layerwise: the encoder has 2 layers, so there is no layer 3"):
        sparsify(zoo.build("marian"), L0DropConfig(gating="mask", layerwise=[1, 3]))
