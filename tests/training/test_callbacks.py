"""λ in a stock Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from l0drop import L0DropConfig, SteerCallback, sparsify
from tests.models import zoo


def trained(folder: Path, steps: int, resume: Path | None = None, **options: Any) -> Seq2SeqTrainer:
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.5, start=1.0))
    batch = zoo.ragged_batch()
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["input_ids"]))]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    arguments = Seq2SeqTrainingArguments(
        str(folder), max_steps=steps, save_steps=3, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
        use_cpu=True, lr_scheduler_type="constant", **{"logging_strategy": "no", **options},
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=lambda chosen: {name: torch.stack([row[name] for row in chosen]) for name in chosen[0]},
        optimizers=(torch.optim.Adam(model.parameter_groups(lr=3e-4)), None),
        callbacks=[SteerCallback()],
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def test_a_resumed_trainer_continues_with_the_same_lambda(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 6).model.schedule.state_dict()
    trained(tmp_path / "cut", 3)
    resumed = trained(tmp_path / "cut", 6, tmp_path / "cut" / "checkpoint-3").model.schedule.state_dict()
    assert resumed["steps"] == whole["steps"] == 6


def test_lambda_and_sparsity_are_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trained(tmp_path, 4, logging_strategy="steps", logging_steps=2)
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    for entry in entries:
        assert entry["lambda"] > 0
        assert 0 <= entry["sparsity"] <= 1
    assert entries[-1]["lambda"] == trainer.model.lambda_
    printed = capsys.readouterr().out
    assert printed.count("'lambda'") == printed.count("'sparsity'") == 2
    assert "lambda" not in trainer.state.log_history[-1], "the summary at the end is not a step"


def test_a_model_without_a_gate_is_refused(tmp_path: Path) -> None:
    arguments = Seq2SeqTrainingArguments(str(tmp_path), max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
    rows = [{"input_ids": torch.tensor([3]), "labels": torch.tensor([3])}]
    trainer = Seq2SeqTrainer(zoo.build("marian"), arguments, train_dataset=rows, callbacks=[SteerCallback()])
    with pytest.raises(TypeError, match="SteerCallback: MarianMTModel has no gate to steer.*sparsify"):
        trainer.train()
