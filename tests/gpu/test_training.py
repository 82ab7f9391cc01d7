"""The fast path on a GPU: kernels, compiled layers and whole runs against plain computations."""

import json

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("l0drop", reason="needs the dependencies of l0drop")

from l0drop import L0DropConfig, sparsify
from l0drop.core import hard_concrete
from l0drop.training.compiled import Compiled
from l0drop.training.fused_loss import linear_cross_entropy_sum, plain_loss_and_gradient
from l0drop.training.low_precision import LowPrecision
from l0drop.training.objective import decoder_inputs, noise_keys
from l0drop.training.output_layer import OutputLayer
from l0drop.training.ragged import ragged_attention
from tests.models import zoo

SHAPES = [(3, 9, 21), (4, 16, 16), (2, 40, 33), (2, 128, 100), (2, 140, 150), (1, 1, 1)]  # sentences, queries, keys


def distance(ours, reference):
    ours, reference = ours.detach().double(), reference.detach().double()
    return float((ours - reference).norm() / reference.norm())


def slow_attention(query, key, value, bias, causal, scale):
    query, key, value = (x.double().transpose(1, 2) for x in (query, key, value))
    scores = query @ key.transpose(2, 3) * scale
    if bias is not None:
        scores = scores + bias.double()[:, None, None]
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def attention_problem(B, T, S, H=3, D=64, biased=True):
    inputs = [torch.randn(B, n, H, D, device="cuda", dtype=torch.bfloat16).requires_grad_() for n in (T, S, S)]
    bias = None
    if biased:
        bias = torch.randn(B, S, device="cuda")
        bias[0, (S + 1) // 2 :] = -torch.inf
        bias.requires_grad_()
    return [*inputs, bias], torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(("B", "T", "S"), SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_short_attention_equals_plain_attention(B, T, S, causal):
    from l0drop.training.short_attention import short_attention

    S = T if causal else S
    inputs, weights = attention_problem(B, T, S, biased=not causal)
    ours = short_attention(*inputs, causal=causal, scale=0.125)
    theirs = slow_attention(*inputs, causal, 0.125)
    assert distance(ours, theirs) < 1e-2
    wanted = [x for x in inputs if x is not None]
    gradients = (torch.autograd.grad(out, wanted, weights.to(out.dtype)) for out in (ours, theirs))
    for one, other in zip(*gradients, strict=True):
        assert S == 1 or distance(one, other) < 1.5e-2


def test_attention_dropout_has_its_rate_and_is_the_same_in_both_directions():
    from l0drop.training.short_attention import short_attention

    (query, key, value, _), weights = attention_problem(8, 50, 50, H=8, biased=False)
    seed = torch.tensor([7], dtype=torch.int32, device="cuda")
    ones = torch.ones_like(value, requires_grad=True)
    settings = {"causal": False, "scale": 0.125, "dropout": 0.3}
    survived = short_attention(query * 0, key, ones, **settings, seed=seed)[..., 0]
    assert float(survived.float().mean()) == pytest.approx(1, abs=0.01)  # 70% of 50 equal weights, each divided by 0.7
    assert float(survived.float().var()) == pytest.approx(0.3 / 0.7 / 50, rel=0.1)
    other = short_attention(query * 0, key, ones, **settings, seed=seed + 1)[..., 0]
    assert not torch.equal(survived, other)
    out = short_attention(query, key, value, **settings, seed=seed)
    (of_value,) = torch.autograd.grad(out, [value], weights)
    # attention is linear in its values: ⟨out, w⟩ = ⟨gradient, values⟩ if both directions dropped the same
    pairing = float((out.float() * weights.float()).sum()), float((of_value.float() * value.float()).sum())
    scale = float((out.float() * weights.float()).norm())
    assert abs(pairing[0] - pairing[1]) < 0.05 * scale


def test_the_fused_loss_in_bfloat16():
    hidden = torch.randn(3_000, 64, device="cuda", requires_grad=True)
    weight = torch.randn(5_003, 64, device="cuda").mul(0.2).requires_grad_()
    bias, labels = torch.randn(5_003, device="cuda"), torch.randint(5_003, (3_000,), device="cuda")
    logits = hidden.double() @ weight.double().T + bias
    reference = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    expected = torch.autograd.grad(reference, [hidden, weight])
    settings = {"bias_V": bias, "smoothing": 0.1, "dtype": torch.bfloat16, "chunk": 1_100}
    loss = linear_cross_entropy_sum(hidden, weight, labels, **settings)
    assert distance(loss, reference) < 1e-3
    for one, other in zip(torch.autograd.grad(loss, [hidden, weight]), expected, strict=True):
        assert distance(one, other) < 1e-2


@pytest.mark.parametrize("vocabulary", [5_003, 4_096, 900])
@pytest.mark.parametrize("temperature", [None, 1.0, 2.0])
def test_the_loss_kernel_equals_the_plain_computation(vocabulary, temperature):
    from l0drop.training.loss_kernel import loss_and_gradient

    logits, teacher_logits = (torch.randn(300, vocabulary, device="cuda") * 3 for _ in range(2))
    bias, labels = torch.randn(vocabulary, device="cuda"), torch.randint(vocabulary, (300,), device="cuda")
    labels[::7] = -100
    teacher = None if temperature is None else (teacher_logits, bias.flip(0), 0.7, temperature)
    expected = plain_loss_and_gradient(logits.clone(), bias, labels, 0.1, True, teacher)
    found = loss_and_gradient(logits.clone(), bias, labels, 0.1, True, teacher)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or distance(one, other) < 1e-5
    assert loss_and_gradient(logits.clone(), bias, labels, 0.1, False, teacher)[2] is None


def test_noise_is_bit_identical_on_cpu_gpu_and_compiled():
    keys, positions = noise_keys(torch.arange(50), 77, 3), torch.arange(40).expand(50, 40)
    expected = hard_concrete.keyed_uniforms(keys, positions, 2)
    on_gpu = hard_concrete.keyed_uniforms(keys.cuda(), positions.cuda(), 2)
    compiled = torch.compile(hard_concrete.keyed_uniforms, dynamic=True)(keys.cuda(), positions.cuda(), 2)
    assert torch.equal(on_gpu.cpu(), expected)
    assert torch.equal(compiled.cpu(), expected)


def problem(gating):
    """A model, a batch with odd lengths on both sides, its labels, and the indices of real target tokens."""
    model = zoo.build("marian")
    if gating is not None:
        model = zoo.spread_gates(sparsify(model, L0DropConfig(gating=gating, lambda_=0.3)))
    batch = {name: tensor.cuda() for name, tensor in zoo.ragged_batch((23, 17, 9, 20, 23, 3)).items()}
    target = zoo.ragged_batch((11, 19, 7, 3, 15, 9), seed=5)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
    real = (labels != -100).flatten().nonzero().flatten().cuda()
    model, labels = model.cuda().train(), labels.cuda()
    inputs = {**batch, **decoder_inputs(model, labels), "use_cache": False}
    if gating is not None:
        inputs |= {"noise_key": torch.arange(6, device="cuda"), "own_loss": True}
    return model, inputs, labels, real


def fast_loss(model, inputs, labels, real, layer):
    with torch.autocast("cuda", torch.bfloat16), layer.states() as states:
        output = model(**inputs)
    return layer.loss(states[0], labels, real, 0.1, output.logits) + getattr(output, "penalty", 0.0)


@pytest.mark.parametrize("gating", [None, "zero", "weight"])
def test_the_fast_step_is_as_close_to_float32_as_autocast(gating):
    model, inputs, labels, real = problem(gating)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def plain(enabled):
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            output = model(**inputs)
        logits = output.logits.float().flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), label_smoothing=0.1, reduction="sum")
        return loss + getattr(output, "penalty", 0.0)

    exact, rounded = plain(False), plain(True)
    expected, usual = gradient(exact), gradient(rounded)
    with ragged_attention(model), Compiled(model).running():
        fast = fast_loss(model, inputs, labels, real, OutputLayer(model, torch.bfloat16))
        ours = gradient(fast)
    assert distance(fast, exact) < 1e-2
    assert distance(ours, expected) < 1.5 * distance(usual, expected)
    assert distance(usual, expected) < 0.2


def test_low_precision_equals_autocast():
    model, inputs, _, _ = problem(None)
    low = LowPrecision(model, torch.bfloat16)

    def backward():
        with torch.autocast("cuda", torch.bfloat16):
            model(**inputs).logits.float().logsumexp(-1).sum().backward()

    def gradients():
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    backward()
    backward()
    expected = gradients()
    model.zero_grad()
    for _ in range(2):
        with low.running():
            backward()
        low.collect()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected.pop(name), rtol=1e-2, atol=1e-2 * float(gradient.abs().max()))
    assert not expected
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    assert float(low.clip(0.5)) == pytest.approx(norm, rel=1e-4)
    assert float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)) == pytest.approx(0.5, rel=1e-3)


def test_a_gated_step_never_waits_for_the_gpu():
    model, inputs, labels, real = problem("zero")
    layer, compiled = OutputLayer(model, torch.bfloat16), Compiled(model)
    low = LowPrecision(model, torch.bfloat16)
    with ragged_attention(model), low.running(), compiled.running():
        fast_loss(model, inputs, labels, real, layer).backward()  # compiles, and checks the logits once
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            fast_loss(model, inputs, labels, real, layer).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_fast_run_equals_a_plain_run(tmp_path):
    pytest.importorskip("pydantic", reason="recipes need pydantic")
    pytest.importorskip("sacrebleu", reason="runs are scored with sacrebleu")
    from rich.console import Console

    from l0drop.recipe import parse_recipe
    from l0drop.training.run import train
    from tests.training import tiny

    model = {"transformer": {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "ffn": 64}}
    model["transformer"] |= {"positions": 64, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    losses = {}
    for fast in (False, True):
        settings = {"steps": 40, "precision": "bf16", "accumulation": 2, "fast": fast, "compile": fast}
        settings["length_multiple"] = 4  # the batches of captured steps
        sparse = {"lambda_": 0.2, "ramp": {"end": 20}}
        values = tiny.recipe(tmp_path, f"fast-{fast}", model=model, l0drop=sparse, train=settings)
        train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
        lines = (tmp_path / "runs" / f"fast-{fast}" / "log.jsonl").read_text().splitlines()
        losses[fast] = [e["cross_entropy"] for e in map(json.loads, lines) if "loss" in e]
    assert losses[True][-1] < losses[True][0] - 1
    assert losses[True] == pytest.approx(losses[False], rel=0.03)


DRY = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "kind",
    ["plain", "zero", "mask", "weight", "mean", "elastic", "distilled", "compiled", "compiled-elastic", "phases"],
)
def test_captured_steps_equal_uncaptured_ones(kind, precision, tmp_path):
    """Several epochs of several shapes, so that most steps are replayed; gradients are compared by their norm."""
    pytest.importorskip("pydantic", reason="recipes need pydantic")
    from rich.console import Console

    from l0drop.recipe import parse_recipe
    from l0drop.training.run import train
    from tests.training import tiny

    if precision == "fp32" and kind not in ("plain", "zero"):
        pytest.skip("one gating is enough in float32")
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "ffn": 64, "positions": 64, **DRY}
    base = tiny.recipe(tmp_path, "base", model={"transformer": sizes}, train={"steps": 20})
    train(parse_recipe(base, "test"), tmp_path / "runs", Console(quiet=True))
    logs = {}
    settings = {"steps": 40, "accumulation": 2, "batch_tokens": 1_000, "precision": precision, "length_multiple": 4}
    more = {"elastic": {"elastic": True}, "distilled": {"teacher": {"weight": 0.5}}, "compiled": {"compile": True}}
    more["compiled-elastic"] = {"elastic": True, "compile": True}
    more["phases"] = {"anneal": 0.4, "fixed_gates": 0.4, "compile": True}
    for capture in (False, True):
        ours = {**settings, **more.get(kind, {}), "capture": capture}
        values = tiny.sparse(tmp_path, str(tmp_path / "runs" / "base"), f"captured-{capture}", train=ours)
        values["l0drop"] = None if kind == "plain" else {"target_sparsity": 0.4, "start": 1.0}
        if kind in ("zero", "mask", "weight", "mean"):
            values["l0drop"]["gating"] = kind
        train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
        lines = (tmp_path / "runs" / f"captured-{capture}" / "log.jsonl").read_text().splitlines()
        logs[capture] = [entry for entry in map(json.loads, lines) if "loss" in entry]
    close = 2e-2 if precision == "bf16" else 2e-3
    for plain, captured in zip(logs[False], logs[True], strict=True):
        assert captured["loss"] == pytest.approx(plain["loss"], rel=close)
        assert captured["grad_norm"] == pytest.approx(plain["grad_norm"], rel=5 * close)
        if kind == "distilled":
            assert captured["divergence"] == pytest.approx(plain["divergence"], rel=0.1, abs=0.02)


@pytest.mark.parametrize("kind", ["plain", "zero", "launched", "compiled", "phases"])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(kind, tmp_path, monkeypatch):
    """With dropout; the resumed run launches steps that the other replays, because it has not seen their shapes yet."""
    pytest.importorskip("pydantic", reason="recipes need pydantic")
    from rich.console import Console
    from safetensors.torch import load_file

    from l0drop.recipe import parse_recipe
    from l0drop.training.run import train
    from tests.training import tiny
    from tests.training.stopped import stopped_at

    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "ffn": 64, "positions": 64}
    settings = {"steps": 40, "save_every": 10, "eval_every": 40, "batch_tokens": 1_000, "precision": "bf16"}
    settings |= {"capture": kind != "launched", "compile": kind == "compiled", "length_multiple": 4}
    if kind == "phases":
        settings |= {"anneal": 0.3, "fixed_gates": 0.5, "steer_over": 0.2}
    values = tiny.recipe(tmp_path, model={"transformer": sizes}, train=settings)
    values["l0drop"] = {"target_sparsity": 0.4, "start": 1.0} if kind in ("zero", "phases") else None
    recipe = parse_recipe(values, "test")
    train(recipe, tmp_path / "whole", Console(quiet=True))
    stopped_at(23, lambda: train(recipe, tmp_path / "stopped", Console(quiet=True)), monkeypatch)
    train(recipe, tmp_path / "stopped", Console(quiet=True))
    one, other = (load_file(tmp_path / name / "tiny" / "model" / "model.safetensors") for name in ("whole", "stopped"))
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


def test_a_captured_step_draws_new_dropout_and_sums_gradients():
    from l0drop.training.captured import Captured

    weight = torch.nn.Parameter(torch.ones(1_000, device="cuda"))
    weight.grad = torch.zeros_like(weight)

    def forward(inputs, variant):
        kept = F.dropout(inputs["x"], 0.5)
        loss = (weight * kept).sum() * (2 if variant else 1)
        return loss, {"loss": loss, "kept": (kept != 0).sum()}

    captured = Captured(forward, lambda loss: loss.backward())
    found = []
    for step in range(6):
        weight.grad.zero_()
        x = torch.full((1_000,), float(step + 1), device="cuda")
        for variant in (False, True):
            _, early = captured.step({"x": x}, variant)
            found.append(early.read())
        # dropout scales the kept values to 2 x; the second variant counts them twice
        expected = 2 * (step + 1) * (found[-2]["kept"] + 2 * found[-1]["kept"])
        assert float(weight.grad.sum()) == pytest.approx(expected, rel=1e-5)
        assert found[-2]["loss"] == pytest.approx(2 * (step + 1) * found[-2]["kept"], rel=1e-5)
    assert len(captured.graphs) == 2
    assert len({numbers["kept"] for numbers in found}) > 6
