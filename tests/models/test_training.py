"""Training: the documented loop and the Trainer bring a small model to its target, and it still solves the task."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from l0drop import L0DropConfig, sparsify
from l0drop.core.penalty import RampedLambda
from tests.models import task
from tests.snippets import python_block

STEPS = 450


@pytest.fixture(scope="module")
def solved():  # type: ignore[no-untyped-def]
    """A model without a gate that solves the task."""
    model = task.small_model()
    task.solve(model, 800)
    return model


@pytest.fixture(scope="module")
def held_out() -> list[task.Batch]:
    return list(task.batches(6, seed=99))


def sparsity(model, batches: list[task.Batch]) -> float:  # type: ignore[no-untyped-def]
    kept = [
        explanation for batch in batches for explanation in model.explain(batch["input_ids"], batch["attention_mask"])
    ]
    return 1 - sum(len(e.kept) for e in kept) / sum(len(e.gates) for e in kept)


@pytest.mark.parametrize(
    "gating", ["zero", *(pytest.param(g, marks=pytest.mark.slow) for g in ("mask", "weight", "mean"))]
)
def test_the_documented_loop_reaches_the_target(solved, held_out, gating, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    before = task.accuracy(solved, held_out)
    assert before > 0.8, "the baseline itself must have learned the task"
    model = sparsify(copy.deepcopy(solved), L0DropConfig(gating=gating, target_sparsity=0.4))
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    names = {"model": model, "batches": task.batches(STEPS, seed=2), "held_out": held_out}
    exec(python_block("docs/training.md", "model.steer("), {**names, "folder": tmp_path, "tokenizer": tokenizer})
    fresh = list(task.batches(6, seed=7))
    assert sparsity(model, fresh) == pytest.approx(0.4, abs=0.05)
    assert task.accuracy(model, fresh) > max(0.9, before - 0.05)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert sparsity(loaded, fresh) == sparsity(model, fresh)
    dropped = [
        int(token)
        for batch in fresh
        for ids, e in zip(batch["input_ids"], model.explain(batch["input_ids"], batch["attention_mask"]), strict=True)
        for position, token in enumerate(ids[: len(e.gates)])
        if position not in e.kept
    ]
    words = sum(token >= task.FIRST_WORD for token in dropped)
    assert words / len(dropped) < 0.1, "it drops fillers and EOS, which the task does not need"


def test_the_documented_loop_refuses_to_ruin_a_model_after_too_few_steps(solved, held_out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """After 40 steps no gate is closed; closing 40% of them by calibration would destroy the outputs."""
    model = sparsify(copy.deepcopy(solved), L0DropConfig(target_sparsity=0.4))
    names = {"model": model, "batches": task.batches(40, seed=2), "held_out": held_out, "folder": tmp_path}
    with pytest.raises(ValueError, match=r"calibrate: the sparsity .*% and the target 40.0%.*Train longer.*force=True"):
        exec(python_block("docs/training.md", "model.steer("), names)
    after = task.accuracy(model, held_out)
    assert after > 0.8
    with pytest.warns(UserWarning, match="the calibration closed"):
        model.calibrate(held_out, force=True)
    assert task.accuracy(model, held_out) < after - 0.3, "this is why it refuses"


@pytest.mark.slow
def test_the_trainer_reaches_the_target(solved, held_out, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    model = sparsify(copy.deepcopy(solved), L0DropConfig(gating="weight", target_sparsity=0.4))
    pairs = [pair for batch in task.batches(STEPS, seed=2) for pair in task.unbatched(batch)]
    monkeypatch.chdir(tmp_path)
    block = python_block("docs/training.md", "Seq2SeqTrainer(")
    namespace = {"model": model, "steps": STEPS, "dataset": pairs, "collate": task.batch_of}
    exec(
        block.replace(
            '"out",', '"out", use_cpu=True, disable_tqdm=True, save_strategy="no", remove_unused_columns=False,'
        ),
        namespace,
    )
    model.calibrate(held_out)
    fresh = list(task.batches(6, seed=7))
    assert sparsity(model, fresh) == pytest.approx(0.4, abs=0.05)
    assert task.accuracy(model, fresh) > 0.9


@pytest.mark.parametrize("gating", ["zero", "mask", "weight"])
def test_a_gate_learns_from_the_dial_in_training_which_tokens_to_keep(solved, held_out, gating: str) -> None:  # type: ignore[no-untyped-def]
    """Only the gate is trained, without a penalty: it learns from `keep` alone to rank words first.

    With `mean` it does not: the mean row still tells a decoder that is not trained along which words were dropped, so
    dropping them costs little.
    """
    model = sparsify(copy.deepcopy(solved), L0DropConfig(gating=gating, lambda_=0.0))

    def words_lost() -> float:
        model.eval()
        lost = words = 0
        for batch in held_out:
            with model.dial(keep=0.6):
                found = model.explain(batch["input_ids"], batch["attention_mask"])
            for ids, explanation in zip(batch["input_ids"].tolist(), found, strict=True):
                positions = {position for position, token in enumerate(ids) if token >= task.FIRST_WORD}
                lost, words = lost + len(positions - {*explanation.kept}), words + len(positions)
        return lost / words

    assert words_lost() > 0.3, "all gates are equal, so the first positions are kept"
    optimizer = torch.optim.Adam(model.gate.parameters(), lr=2e-2)
    torch.manual_seed(0)
    for batch in task.batches(120, seed=5):
        model.train()
        with model.dial(keep=0.6):
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert words_lost() < 0.1


def test_a_ramp_moves_lambda_with_the_steps() -> None:
    model = sparsify(task.small_model(), L0DropConfig(lambda_=0.2)).train()
    model.schedule = RampedLambda(0.2, start=0, end=10)
    seen = []
    for batch in task.batches(12, seed=3, size=4):
        seen.append(model.lambda_)
        model(**batch).loss.backward()
        model.steer()
    assert seen[:4] == [pytest.approx(0.02 * i) for i in range(4)]
    assert model.lambda_ == pytest.approx(0.2)


def test_steer_without_a_value_uses_the_batches_since_the_last_call() -> None:
    model = sparsify(task.small_model(), L0DropConfig(target_sparsity=0.5)).train()
    with torch.no_grad():
        model.gate.weight.normal_(0, 1)
        model.gate.bias.fill_(-2.0)
    first, second = (model(**batch) for batch in task.batches(2, seed=5, size=8))
    expected = [float(out.sparsity) for out in (first, second)]
    model.steer()
    assert min(expected) <= model.schedule.average <= max(expected)
    model.steer()
    assert model.schedule.steps == 2
    assert min(expected) <= model.schedule.average <= max(expected), "there was no new batch"


def test_the_dial_makes_no_text_of_a_setting_for_each_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that would wait for the tensor, which a captured training step cannot do."""
    model = sparsify(task.small_model(), L0DropConfig()).train()
    monkeypatch.setattr(torch.Tensor, "__format__", lambda *_: pytest.fail("made a text of a tensor"))
    with model.dial(keep=torch.tensor([0.3, 0.5])):
        pass
