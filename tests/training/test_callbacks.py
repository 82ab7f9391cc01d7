"""λ beside a stock Trainer."""

from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from l0drop import L0DropConfig, sparsify
from l0drop.training.callbacks import SteerCallback
from tests.models import zoo


def schedule_after(folder: Path, steps: int, resume: Path | None = None) -> dict[str, Any]:
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.5, start=1.0))
    batch = zoo.ragged_batch()
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["input_ids"]))]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    arguments = Seq2SeqTrainingArguments(
        str(folder), max_steps=steps, save_steps=3, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
        use_cpu=True, lr_scheduler_type="constant", logging_strategy="no",
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
    return model.schedule.state_dict()


def test_a_resumed_trainer_goes_on_with_the_lambda_it_had(tmp_path: Path) -> None:
    whole = schedule_after(tmp_path / "whole", 6)
    schedule_after(tmp_path / "cut", 3)
    resumed = schedule_after(tmp_path / "cut", 6, tmp_path / "cut" / "checkpoint-3")
    assert resumed["steps"] == whole["steps"] == 6
