"""A sparsified model in use: generation modes, precision, compilation, the Trainer, custom gates."""

import copy
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from l0drop import Gate, Gates, L0DropConfig, sparsify
from l0drop.core.gates import LearnedGate
from l0drop.core.memory import GATINGS
from l0drop.core.penalty import penalty
from tests.models import zoo

LABELS = torch.randint(3, zoo.VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(9))


def some_closed(family: str = "marian", attention: str | None = None, **options):  # type: ignore[no-untyped-def]
    return zoo.spread_gates(sparsify(zoo.build(family, attention), L0DropConfig(**options)))


def calibrated(model, batch, target: float):  # type: ignore[no-untyped-def]
    """The result of a calibration that moves a large part of the gates of an untrained model."""
    with pytest.warns(UserWarning, match="the calibration (closed|opened)"):
        return model.calibrate([batch], target=target, force=True)


def test_sparsify_shares_parameters_and_leaves_the_base_alone() -> None:
    base = zoo.build("bart").train()
    modules = {name: type(module) for name, module in base.named_modules()}
    model = sparsify(base)
    own = dict(model.named_parameters())
    assert all(own[name] is parameter for name, parameter in base.named_parameters())
    assert {name: type(module) for name, module in base.named_modules()} == modules
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in base.modules())
    assert set(own) - set(dict(base.named_parameters())) == {"gate.weight", "gate.bias"}
    assert model.training
    assert isinstance(model, type(base))
    before = base(**zoo.ragged_batch(), labels=LABELS).loss.item()
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    model(**zoo.ragged_batch(), labels=LABELS).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert base(**zoo.ragged_batch(), labels=LABELS).loss.item() != before


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_way_to_generate(family: str) -> None:
    model, batch = some_closed(family), zoo.ragged_batch()
    assert model.generate(**batch, max_new_tokens=5).shape[0] == 6
    several = model.generate(**batch, num_beams=4, num_return_sequences=3, max_new_tokens=5)
    assert several.shape[0] == 18
    best = model.generate(**batch, num_beams=4, max_new_tokens=5)
    assert torch.equal(several[::3, : best.shape[1]], best)
    torch.manual_seed(0)
    sampled = model.generate(**batch, do_sample=True, top_k=20, num_return_sequences=2, max_new_tokens=5)
    assert sampled.shape[0] == 12
    forced = model.generate(**batch, forced_bos_token_id=7, num_beams=2, max_new_tokens=5)
    assert forced[:, 1].tolist() == [7] * 6
    scored = model.generate(**batch, num_beams=2, max_new_tokens=5, return_dict_in_generate=True, output_scores=True)
    assert scored.sequences_scores.shape == (6,)


@torch.no_grad()
def test_encoder_outputs_from_outside_are_gated() -> None:
    model, batch = some_closed("bart"), zoo.ragged_batch()
    expected = model(**batch, labels=LABELS).logits
    plain = model.model.encoder(**batch)
    mask = batch["attention_mask"]
    torch.testing.assert_close(model(encoder_outputs=plain, attention_mask=mask, labels=LABELS).logits, expected)
    as_tuple = model(encoder_outputs=(plain.last_hidden_state,), attention_mask=mask, labels=LABELS).logits
    torch.testing.assert_close(as_tuple, expected)
    memory = model.get_encoder()(**batch)
    torch.testing.assert_close(model(encoder_outputs=memory, labels=LABELS).logits, expected)
    tokens = model.generate(**batch, num_beams=3, max_new_tokens=8)
    assert torch.equal(model.generate(encoder_outputs=memory, num_beams=3, max_new_tokens=8), tokens)


@torch.no_grad()
def test_embeddings_instead_of_ids_and_tuples_instead_of_outputs() -> None:
    model, batch = some_closed("bart"), zoo.ragged_batch()
    expected = model(**batch, labels=LABELS)
    embedded = model.get_input_embeddings()(batch["input_ids"])
    found = model(inputs_embeds=embedded, attention_mask=batch["attention_mask"], labels=LABELS)
    torch.testing.assert_close(found.logits, expected.logits)
    assert torch.equal(model(**batch, labels=LABELS, return_dict=False)[0], expected.loss)
    inside = model(**batch, labels=LABELS, output_hidden_states=True)
    assert len(inside.encoder_hidden_states) == len(inside.decoder_hidden_states) == 3


@torch.no_grad()
def test_global_attention_reaches_the_encoder_of_led() -> None:
    batch = zoo.ragged_batch()
    attend_first = torch.zeros_like(batch["input_ids"])
    attend_first[:, 0] = 1
    base = zoo.build("led")
    sparse = sparsify(base)
    expected = base(**batch, global_attention_mask=attend_first, labels=LABELS).logits
    torch.testing.assert_close(sparse(**batch, global_attention_mask=attend_first, labels=LABELS).logits, expected)
    assert not torch.allclose(sparse(**batch, labels=LABELS).logits, expected)
    tokens = [m.generate(**batch, global_attention_mask=attend_first, max_new_tokens=6) for m in (base, sparse)]
    assert torch.equal(*tokens)


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("gating", GATINGS)
def test_training_step(family: str, gating: str) -> None:
    """loss = cross-entropy + λ · penalty; gradients reach the gate and are finite."""
    model, batch = some_closed(family, gating=gating, lambda_=0.7).train(), zoo.ragged_batch()
    output = model(**batch, labels=LABELS, noise_key=torch.arange(6))
    torch.testing.assert_close(output.loss, output.cross_entropy + 0.7 * output.penalty)
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(output.penalty, penalty(output.gates.open_probability, mask).mean())
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert float(model.gate.weight.grad.abs().max()) > 0
    again = model(**batch, labels=LABELS, noise_key=torch.arange(6))
    assert torch.equal(again.gates.values, output.gates.values), "the noise depends on the key alone"
    assert not torch.equal(
        model(**batch, labels=LABELS, noise_key=torch.arange(6) + 9).gates.values, output.gates.values
    )
    model.eval()
    evaluated = model(**batch, labels=LABELS)
    assert torch.equal(evaluated.loss, evaluated.cross_entropy)
    assert float(output.sparsity) == float(evaluated.sparsity), "in training it counts test-time gates too"


@pytest.mark.parametrize("keep", [None, 0.4])
def test_keyed_noise_does_not_depend_on_batch_or_side_of_padding(keep: float | None) -> None:
    model, batch = some_closed("t5").train(), zoo.ragged_batch()
    keys = torch.tensor([8, 6, 7, 5, 3, 0])

    def gates(inputs: dict[str, torch.Tensor], rows: slice) -> torch.Tensor:
        with model.dial(keep=keep):
            return model(**inputs, labels=LABELS[rows], noise_key=keys[rows]).gates.values

    values = gates(batch, slice(None))
    for row, length in ((1, 17), (2, 9), (3, 20)):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        one = gates(alone, slice(row, row + 1))
        torch.testing.assert_close(one[0], values[row, :length])
        left = {name: torch.nn.functional.pad(tensor, (3, 0)) for name, tensor in alone.items()}
        padded = gates(left, slice(row, row + 1))
        torch.testing.assert_close(padded[0, 3:], one[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("gating", GATINGS)
def test_a_training_step_with_the_dial(gating: str) -> None:
    """Half of the sentences keep as many rows as in decoding, the others sample; gradients are finite."""
    model, batch = some_closed("bart", gating=gating, lambda_=0.7).train(), zoo.ragged_batch()
    mask, kept = batch["attention_mask"].bool(), torch.zeros(2)
    shares = torch.tensor([0.2, 0.4, 0.5, 0.6, 0.9, 1.0])
    for key in range(40):
        with model.dial(keep=shares):
            output = model(**batch, labels=LABELS, noise_key=torch.arange(6) + 6 * key)
        chosen = (output.gates.values != 0).sum(1) == (shares.double() * mask.sum(1)).round()
        kept += torch.tensor([int(chosen[:5].sum()), int(chosen[5])])
        output.loss.backward()
    assert 80 < int(kept[0]) < 160, "half of 200 sentences, and some of the others by chance"
    assert int(kept[1]) == 40, "if all rows are kept nothing is sampled"
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert float(model.gate.weight.grad.abs().max()) > 0


def test_tokens_always_kept_have_gate_one_and_no_penalty() -> None:
    batch = zoo.ragged_batch()
    token = int(batch["input_ids"][1, 3])
    model = some_closed("bart", always_keep=(token, 2), lambda_=1.0).train()
    output = model(**batch, labels=LABELS)
    marked = batch["input_ids"] == token
    assert bool((output.gates.values[marked] == 1).all())
    rest = batch["attention_mask"].bool() & ~marked
    torch.testing.assert_close(output.penalty, penalty(output.gates.open_probability, rest).mean())
    model.eval()
    with torch.no_grad():
        closed = (model(**batch, labels=LABELS).gates.values == 0) & batch["attention_mask"].bool()
        assert not bool(closed[marked].any())
        assert float(model(**batch, labels=LABELS).sparsity) == pytest.approx(float(closed.sum() / 97))


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_autocast(gating: str, attention: str) -> None:
    model, batch = some_closed("marian", attention, gating=gating).train(), zoo.ragged_batch()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch, labels=LABELS)
    assert output.gates.values.dtype == torch.float32
    output.loss.backward()
    assert model.gate.weight.grad.isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.eval().generate(**batch, num_beams=2, max_new_tokens=4).shape[0] == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("family", "attention"), zoo.BOTH_ATTENTIONS)
@pytest.mark.usefixtures("strict_attention")
@torch.no_grad()
def test_low_precision(dtype: torch.dtype, family: str, attention: str, fixed_gate: torch.nn.Module) -> None:
    """Short and dense differ no more than rounding the same sums in another order explains."""
    batch = zoo.ragged_batch()
    for gating in GATINGS:
        model = sparsify(zoo.build(family, attention).to(dtype), L0DropConfig(gating=gating))
        model.gate = fixed_gate
        short = model(**batch, labels=LABELS).logits.float()
        with model.dial(dense=True):
            dense = model(**batch, labels=LABELS).logits.float()
        assert short.isfinite().all()
        assert float((short - dense).abs().mean() / dense.abs().mean()) < (0.02 if dtype == torch.bfloat16 else 0.005)
        assert model.generate(**batch, num_beams=2, max_new_tokens=4).shape[0] == 6


@pytest.mark.parametrize("family", ["marian", "t5", "led"])
def test_gradient_checkpointing_gives_the_same_gradient(family: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = some_closed(family, gating="weight").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**zoo.ragged_batch(), labels=LABELS, noise_key=torch.arange(6)).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert set(gradients[0]) == set(gradients[1])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize("gating", [pytest.param(g, marks=[] if g == "weight" else pytest.mark.slow) for g in GATINGS])
def test_compiled_step_equals_the_eager_one(gating: str) -> None:
    model, batch = some_closed("marian", gating=gating).train(), zoo.ragged_batch()
    keys = torch.arange(6)
    compiled = torch.compile(model, backend="aot_eager")
    losses = []
    for step in range(4):
        model.lambda_ = 0.1 * step  # steering changes λ at every step; the graph must not contain one value of it
        eager, fast = (m(**batch, labels=LABELS, noise_key=keys + step).loss for m in (model, compiled))
        torch.testing.assert_close(fast, eager)
        losses.append(fast.item())
    assert len(set(losses)) == 4
    with torch.no_grad():
        model.eval()
        torch.testing.assert_close(compiled(**batch, labels=LABELS).logits, model(**batch, labels=LABELS).logits)
    torch._dynamo.reset()


def test_a_training_step_is_one_graph() -> None:
    """T5 alone has no layers that are skipped at random. A dial that is set later is not ignored."""
    model, batch = some_closed("t5", gating="zero").train(), zoo.ragged_batch()
    inputs = {**batch, "labels": LABELS, "noise_key": torch.arange(6)}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs).loss, model(**inputs).loss)
    with model.dial(keep=0.2), pytest.raises(torch._dynamo.exc.Unsupported, match="ContextVar"):
        compiled(**inputs)
    torch._dynamo.reset()


def test_copies_and_pickles() -> None:
    model, batch = sparsify(zoo.build("marian")), zoo.ragged_batch()
    torch.nn.init.normal_(model.gate.weight)
    tokens = model.generate(**batch, max_new_tokens=5)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert torch.equal(other.generate(**batch, max_new_tokens=5), tokens)
        other.gate.bias.data.fill_(50.0)
    assert torch.equal(model.generate(**batch, max_new_tokens=5), tokens)


def test_parameter_groups_give_the_gate_its_own_rate() -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(layerwise=True))
    rest, gates = model.parameter_groups(1e-4, gate_scale=20)
    assert gates["lr"] == pytest.approx(2e-3)
    assert rest["lr"] == 1e-4
    assert {id(p) for p in gates["params"]} == {id(p) for n, p in model.named_parameters() if "gate" in n}
    together = [id(p) for p in rest["params"] + gates["params"]]
    assert len(together) == len(set(together)) == sum(p.requires_grad for p in model.parameters())


class Examples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, n: int) -> None:
        batch = zoo.ragged_batch((12,) * n)
        labels = torch.randint(3, zoo.VOCABULARY, (n, 7), generator=torch.Generator().manual_seed(1))
        self.rows = [
            {"input_ids": ids, "attention_mask": mask, "labels": label, "noise_key": torch.tensor(number)}
            for number, (ids, mask, label) in enumerate(
                zip(batch["input_ids"], batch["attention_mask"], labels, strict=True)
            )
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


def trainer(model, folder, **options):  # type: ignore[no-untyped-def]
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, max_steps=1, learning_rate=1e-3, save_strategy="no",
        disable_tqdm=True, max_grad_norm=1e9, logging_steps=1, **options,
    )  # fmt: skip
    return Seq2SeqTrainer(model=model, args=arguments, train_dataset=Examples(8), eval_dataset=Examples(8))


def test_trainer_refuses_to_lose_the_penalty(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="label_smoothing_factor"):
        trainer(sparsify(zoo.build("bart")), tmp_path, label_smoothing_factor=0.1).train()


def test_trainer_accumulates_the_same_gradient_and_predicts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    norms = []
    for size, accumulation in ((8, 1), (2, 4)):
        model = sparsify(zoo.build("marian"), L0DropConfig(lambda_=0.5))  # the examples carry noise keys
        run = trainer(
            model,
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            eval_strategy="no",
        )
        run.train()
        norms.append(next(entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry))
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    logits, memory = run.predict(Examples(4)).predictions  # the base model's predictions, without gates and penalty
    assert logits.shape == (4, 7, zoo.VOCABULARY)
    assert memory.shape[-1] == zoo.WIDTH


def test_a_replaced_gate_takes_the_mode_of_the_model() -> None:
    model, batch = sparsify(zoo.build("marian")), zoo.ragged_batch()
    model.gate = LearnedGate(zoo.WIDTH, start=0.0)
    assert not model.gate.training
    assert torch.equal(model(**batch, labels=LABELS).logits, model(**batch, labels=LABELS).logits)


def test_the_dial_and_the_calibration_use_the_replaced_gate() -> None:
    model, batch = sparsify(zoo.build("marian")), zoo.ragged_batch()
    model.gate = LearnedGate(zoo.WIDTH, epsilon=0.5)
    zoo.spread_gates(model)
    own = [e.kept for e in model.explain(**batch)]
    with model.dial(shift=0.0):
        assert [e.kept for e in model.explain(**batch)] == own
    result = calibrated(model, batch, 0.4)
    assert float(model(**batch, labels=LABELS).sparsity) == pytest.approx(result.after, abs=1e-6)


@torch.no_grad()
def test_a_calibrated_threshold_is_saved_with_the_model(tmp_path: Path) -> None:
    model, batch = some_closed("marian"), zoo.ragged_batch()
    before = float(model(**batch, labels=LABELS).sparsity)
    for target in (before + 0.2, before - 0.2):
        result = calibrated(model, batch, target)
        assert result.met
        assert float(model(**batch, labels=LABELS).sparsity) == pytest.approx(result.after, abs=1e-6)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.gate.threshold == model.gate.threshold
    assert float(loaded(**batch, labels=LABELS).sparsity) == pytest.approx(result.after, abs=1e-6)


def test_special_tokens_may_all_be_always_kept() -> None:
    batch = zoo.ragged_batch()
    model = some_closed("bart", always_keep=(0, 1, 2))  # including padding
    for setting in ({"shift": -1.0}, {"keep": 0.4}, {"max_memory": 5}):
        with model.dial(**setting):
            assert model.generate(**batch, max_new_tokens=3).shape[0] == 6


def test_positions_are_counted_in_real_tokens() -> None:
    model = some_closed("t5")
    batch = {name: tensor[2:3, :9] for name, tensor in zoo.ragged_batch().items()}
    left = {name: torch.nn.functional.pad(tensor, (3, 0)) for name, tensor in batch.items()}
    (plain,), (padded,) = model.explain(**batch), model.explain(**left)
    assert plain.kept == padded.kept
    assert padded.gates[padded.kept].gt(0).all()


@pytest.mark.parametrize("family", ["bart", "mbart", "led"])
@torch.no_grad()
def test_default_and_positional_arguments_work_as_in_the_base_model(family: str) -> None:
    """These families decode their own input if nothing else is given, and take positional arguments."""
    base, batch = zoo.build(family), zoo.ragged_batch()
    model = sparsify(base)
    torch.testing.assert_close(model(**batch).logits, base(**batch).logits)
    arguments = (batch["input_ids"], batch["attention_mask"], batch["input_ids"][:, :4])
    torch.testing.assert_close(model(*arguments).logits, base(*arguments).logits)


class Booleans(Gate):
    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates((input_ids % 2 == 0) & mask)


class Scores(Gate):
    """A custom gate that is trained by the penalty and ranked by the dial, but not hard-concrete."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = torch.nn.Linear(width, 1)

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        score = self.project(encodings).squeeze(-1)
        return Gates(torch.sigmoid(score) * (score > 0) * mask, torch.sigmoid(score) * mask, score)


@pytest.mark.parametrize("gating", GATINGS)
def test_a_gate_that_is_not_hard_concrete_trains_and_works_with_the_dial(gating: str) -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(gating=gating)), zoo.ragged_batch()
    model.gate = Scores(zoo.WIDTH)
    output = model.train()(**batch, labels=LABELS)
    output.loss.backward()
    assert float(model.gate.project.weight.grad.abs().max()) > 0
    model.eval()
    with torch.no_grad():
        assert float(output.sparsity) == pytest.approx(float(model(**batch, labels=LABELS).sparsity))
        with model.dial(keep=0.5):
            assert [len(e.kept) for e in model.explain(**batch)] == [12, 8, 4, 10, 12, 2]
        with pytest.raises(ValueError, match="shift: Scores does not define"), model.dial(shift=1.0):
            model(**batch, labels=LABELS)


@pytest.mark.parametrize("gating", GATINGS)
def test_a_rule_may_return_booleans(gating: str) -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(gating=gating)), zoo.ragged_batch()
    model.gate = Booleans()
    assert model.generate(**batch, max_new_tokens=3).shape[0] == 6


def test_a_disabled_model_trains_and_refuses_calls_that_need_gates() -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(enabled=False)).train(), zoo.ragged_batch()
    output = model(**batch, labels=LABELS)
    assert (float(output.sparsity), float(output.penalty)) == (0.0, 0.0)
    model.steer(output.sparsity)
    for use in (
        lambda: model.explain(**batch),
        lambda: model.calibrate([batch], 0.5),
        lambda: model.dial(keep=0.5).__enter__(),
    ):
        with pytest.raises(ValueError, match="enabled: the model runs ungated"):
            use()


def test_a_model_that_is_never_steered_warns_once() -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.5)).train(), zoo.ragged_batch((5, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            model(**batch, labels=LABELS[:2])
    with pytest.warns(UserWarning, match=r"λ was never steered in 100 training steps.*model.steer.*SteerCallback"):
        model(**batch, labels=LABELS[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(101):
            model(**batch, labels=LABELS[:2])  # it warns once


def test_steering_a_model_once_is_enough_not_to_be_warned() -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.5)).train(), zoo.ragged_batch((5, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(101):
            model(**batch, labels=LABELS[:2])
            if step == 0:
                model.steer()


def test_noise_needs_one_key_per_sentence_and_shift_needs_eval() -> None:
    model, batch = some_closed("marian").train(), zoo.ragged_batch()
    with pytest.raises(ValueError, match=r"noise_key: expected shape \(6,\), got \(1,\)"):
        model(**batch, labels=LABELS, noise_key=torch.tensor([3]))
    with pytest.raises(ValueError, match="shift: .* in training, use keep"), model.dial(shift=1.0):
        pass


def test_the_memory_index_holds_the_source_positions() -> None:
    model, batch = some_closed("marian"), zoo.ragged_batch()
    memory = model.get_encoder()(**batch)
    for row, explanation in enumerate(model.explain(**batch)):
        index = memory.memory_index[row]
        assert index[index >= 0].tolist() == explanation.kept
