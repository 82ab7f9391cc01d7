"""The fast path against the plain path: every family, every gating, and whole runs."""

import contextlib
import functools
import itertools
import json
import logging

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from l0drop import L0DropConfig, sparsify
from l0drop.data.batches import TokenBatches
from l0drop.data.corpus import TokenizedCorpus
from l0drop.recipe import parse_recipe
from l0drop.training.compiled import Compiled
from l0drop.training.low_precision import LowPrecision, quick_zero_grad
from l0drop.training.objective import decoder_inputs
from l0drop.training.output_layer import OutputLayer
from l0drop.training.ragged import NAME, plain_attention, ragged_attention
from l0drop.training.run import train
from l0drop.training.stream import PackedStream, StepStream, extended, unpacked
from l0drop.training.transfers import Early, Packed, together
from tests.models import zoo
from tests.training import tiny

GATINGS = (None, "zero", "mask", "weight", "mean")


def build(family, gating=None, **settings):
    model = zoo.build(family).double()
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    if gating is not None:
        model = sparsify(model, L0DropConfig(gating=gating, lambda_=0.3, **settings)).double()
        zoo.spread_gates(model)
    return model.train()


def batch(gated):
    target = zoo.ragged_batch((11, 20, 7, 3, 15, 9), seed=5)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
    extra = {"noise_key": torch.arange(6), "own_loss": True} if gated else {}
    return {**zoo.ragged_batch(), **extra, "use_cache": False}, labels


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_step(model):
    inputs, labels = batch(hasattr(model, "gate"))
    output = model(**inputs, **decoder_inputs(model, labels))
    logits = output.logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), label_smoothing=0.1, reduction="sum")
    return loss, gradients(model, loss + getattr(output, "penalty", 0))


def fast_step(model, compiled=None):
    inputs, labels = batch(hasattr(model, "gate"))
    real = (labels != -100).flatten().nonzero().flatten()
    layer = OutputLayer(model)
    with ragged_attention(model), layer.states() as states:
        if compiled is not None:
            with compiled.running():
                output = model(**inputs, **decoder_inputs(model, labels))
        else:
            output = model(**inputs, **decoder_inputs(model, labels))
    loss = layer.loss(states[0], labels, real, 0.1, output.logits)
    return loss, gradients(model, loss + getattr(output, "penalty", 0))


def assert_same(one, other, tolerance=1e-11):
    torch.testing.assert_close(one[0], other[0], rtol=tolerance, atol=0)
    assert one[1].keys() == other[1].keys()
    largest = max(g.abs().max() for g in one[1].values())
    for name, gradient in one[1].items():
        assert (gradient - other[1][name]).abs().max() < tolerance * largest, name


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("family", [name for name in zoo.FAMILIES if name != "led"])
def test_loss_and_gradients_are_those_of_the_plain_path(family, gating):
    model = build(family, gating)
    assert_same(plain_step(model), fast_step(model))


def test_led_keeps_its_own_attention():
    """Only the loss is compared: LED's gradients are NaN on padded batches, also with Hugging Face's loss."""
    model = build("led")
    with ragged_attention(model) as ragged:
        assert not ragged
    torch.testing.assert_close(plain_step(model)[0], fast_step(model)[0], rtol=1e-11, atol=0)


@pytest.mark.parametrize("gating", ["zero", "mask"])
def test_gates_between_layers_train_the_same(gating):
    model = build("marian", gating, layerwise=True)
    assert_same(plain_step(model), fast_step(model))


def test_the_bias_of_the_output_layer_is_added():
    model = build("m2m100")
    model.lm_head.bias = torch.nn.Parameter(torch.randn(zoo.VOCABULARY, dtype=torch.float64))
    assert_same(plain_step(model), fast_step(model))


def test_a_model_that_changes_its_logits_is_refused(monkeypatch):
    model = build("bart")
    forward = model.forward

    def capped(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits.tanh()
        return output

    monkeypatch.setattr(model, "forward", capped)
    with pytest.raises(ValueError, match="computes its logits with more than its output layer; set train.fast: false"):
        fast_step(model)


def test_the_model_is_unchanged_afterwards():
    model = build("marian", "zero")
    inputs, labels = batch(True)
    compiled, layer = Compiled(model), OutputLayer(model)
    with contextlib.suppress(KeyError), ragged_attention(model), compiled.running(), layer.states():
        assert model.config._attn_implementation == NAME
        with plain_attention(model):
            assert model.config._attn_implementation == "sdpa"
        assert model.config._attn_implementation == NAME
        raise KeyError
    assert model.config._attn_implementation == "sdpa"
    assert "_gate" not in vars(model)
    assert not any(module._compiled_call_impl for module in model.modules())
    assert model(**inputs, **decoder_inputs(model, labels)).logits.shape == (*labels.shape, zoo.VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("gating", [None, "zero", "weight"])
def test_compiled_layers_and_gate_compute_the_same(gating, monkeypatch):
    # traced and differentiated ahead of time as usual, but run by torch: compiling for a CPU takes minutes
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    model = build("marian", gating)
    assert_same(plain_step(model), fast_step(model, Compiled(model)), tolerance=1e-9)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert_same(plain_step(model), fast_step(model, Compiled(model)), tolerance=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "no graph is compiled twice"


def test_low_precision_equals_autocast():
    model = zoo.build("bart").train()
    low = LowPrecision(model, torch.bfloat16)
    batch = zoo.ragged_batch()

    def backward():
        with torch.autocast("cpu", torch.bfloat16):
            model(**batch, decoder_input_ids=batch["input_ids"]).logits.float().logsumexp(-1).sum().backward()

    for _ in range(2):  # the second adds to the first
        backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for _ in range(2):
        with low.running():
            backward()
        low.collect()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-2, atol=1e-3)
    parameters = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    for copy, parameter in zip(parameters, model.parameters(), strict=True):
        copy.grad = parameter.grad.clone()
    assert float(low.clip(0.5)) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(parameters, 0.5)), rel=1e-5)
    for copy, parameter in zip(parameters, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, copy.grad)


class Skip(torch.nn.Module):
    """Replaces a layer and returns its input."""

    def forward(self, hidden_states, *args, **kwargs):
        return hidden_states


def test_skipped_layers_have_no_gradient_in_low_precision():
    model = zoo.build("m2m100").train()
    low, batch, layers = LowPrecision(model, torch.bfloat16), zoo.ragged_batch(), model.get_encoder().layers
    skipped = layers[0]
    for layer in (skipped, Skip()):
        model.zero_grad()
        skipped.zero_grad()
        layers[0] = layer
        with low.running(), torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=batch["input_ids"], decoder_input_ids=batch["input_ids"])
        output.logits.float().logsumexp(-1).sum().backward()
        low.collect()
    assert skipped.fc1.weight.grad is None
    present = [p.grad for p in model.parameters() if p.grad is not None]
    assert float(low.clip(1e9)) == pytest.approx(float(torch.stack([g.norm() for g in present]).norm()), rel=1e-5)


def test_early_returns_the_numbers():
    assert Early(*together({"a": torch.tensor(1.5), "b": torch.tensor(2)})).read() == {"a": 1.5, "b": 2.0}


def test_packing_round_trips():
    tensors = {"a": torch.arange(6).view(2, 3), "b": torch.tensor([7]), "c": torch.zeros(0, 4, dtype=torch.int64)}
    out = Packed(tensors).unpacked(torch.device("cpu"))
    assert out.keys() == tensors.keys()
    assert all(torch.equal(out[name], tensors[name]) for name in tensors)


def test_workers_make_the_same_batches(baseline):
    corpus = TokenizedCorpus.open(baseline / "data" / "train")
    batches = TokenBatches(corpus.source_lengths, corpus.target_lengths, 300, seed=1, accumulation=2)
    stream = StepStream(batches, corpus, 0, lambda: 3)
    loader = DataLoader(PackedStream(stream), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for made, plain in itertools.islice(zip(loader, stream, strict=True), 7):
        found = unpacked(made, torch.device("cpu"))
        assert found.keys() == plain.keys()
        for name, value in plain.items():
            assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value, name


def test_quick_zero_grad():
    model = build("t5")
    with quick_zero_grad(model):
        plain_step(model)
        assert any(p.grad is not None for p in model.parameters())
        model.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    assert "zero_grad" not in vars(model)


# --- whole runs --------------------------------------------------------------------------------------------------


def entries(tmp_path, name, values):
    train(parse_recipe({**values, "name": name}, "test"), tmp_path / "runs", Console(quiet=True))
    lines = (tmp_path / "runs" / name / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if "loss" in entry]


def test_a_fast_run_equals_a_plain_run(baseline, tmp_path):
    logs = {}
    for fast in (False, True):
        settings = {"steps": 12, "accumulation": 2, "batch_tokens": 600, "fast": fast}
        logs[fast] = entries(tmp_path, f"fast-{fast}", tiny.sparse(tmp_path, str(baseline), train=settings))
    for plain, fast in zip(logs[False], logs[True], strict=True):
        for name in ("loss", "cross_entropy", "grad_norm", "penalty", "sparsity", "lambda"):
            assert fast[name] == pytest.approx(plain[name], rel=1e-3), name


def test_a_fast_distilled_run_equals_a_plain_one(baseline, tmp_path):
    logs = {}
    for fast in (False, True):
        settings = {"steps": 6, "fast": fast, "teacher": {"weight": 0.7, "temperature": 2.0}}
        logs[fast] = entries(tmp_path, f"distilled-{fast}", tiny.sparse(tmp_path, str(baseline), train=settings))
    for plain, fast in zip(logs[False], logs[True], strict=True):
        for name in ("loss", "cross_entropy", "divergence", "grad_norm"):
            assert fast[name] == pytest.approx(plain[name], rel=1e-3), name


class Uncaptured:
    """Replaces `Captured` without a GPU: it makes the same calls immediately."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward

    def step(self, inputs, variant=None):
        loss, numbers = self.forward({name: tensor.clone() for name, tensor in inputs.items()}, variant)
        early = Early(*together(numbers))
        self.backward(loss)
        return loss.detach(), early


@pytest.mark.parametrize("kind", ["plain", "gated", "elastic", "distilled"])
def test_the_captured_part_is_the_whole_step(kind, baseline, tmp_path, monkeypatch):
    logs = {}
    settings = {"steps": 8, "accumulation": 2, "batch_tokens": 600, "fast": True, "length_multiple": 4}
    settings |= {"elastic": {"elastic": True}, "distilled": {"teacher": {"weight": 0.5}}}.get(kind, {})
    for captured in (False, True):
        values = tiny.sparse(tmp_path, str(baseline), train={**settings, "capture": captured})
        if kind == "plain":
            values["l0drop"] = None
        if captured:
            monkeypatch.setattr("l0drop.training.captured.Captured", Uncaptured)
            monkeypatch.setattr("l0drop.training.fast.FastPath._can_capture", lambda *arguments: True)
        logs[captured] = entries(tmp_path, f"captured-{captured}", values)
    for plain, captured in zip(logs[False], logs[True], strict=True):
        for name in {"loss", "cross_entropy", "grad_norm", "penalty", "sparsity", "lambda", "divergence"} & set(plain):
            assert captured[name] == pytest.approx(plain[name], rel=1e-4), name


def test_the_reason_for_not_capturing_is_logged(baseline, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "l0drop"):
        entries(tmp_path, "capture", tiny.sparse(tmp_path, str(baseline), train={"steps": 1, "capture": True}))
    assert "train.capture: steps are not captured, because there is no GPU" in caplog.text


def test_batches_do_not_depend_on_obstacles_to_capturing(baseline, tmp_path):
    losses = []
    for settings in ({"capture": True}, {"length_multiple": 4}, {}):
        values = tiny.sparse(tmp_path, str(baseline), train={"steps": 3, **settings})
        losses.append([entry["loss"] for entry in entries(tmp_path, f"batches-{len(losses)}", values)])
    assert losses[0] == losses[1] != losses[2]


def test_indices_of_real_tokens_are_extended_with_padding():
    is_real = torch.tensor([1, 1, 1, 0, 1, 0, 0, 0] * 2, dtype=torch.bool)
    real = is_real.nonzero().flatten()
    found = extended(real, is_real)
    assert found.tolist() == real.tolist()  # 8 of 16 are four eighths
    is_real[3] = True
    found = extended(is_real.nonzero().flatten(), is_real)
    assert found.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 12, 5]
    assert len(extended(torch.arange(16), torch.ones(16, dtype=torch.bool))) == 16
