"""A recipe's settings as arguments of the Trainer and the optimizer."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Recipe
from l0drop.runs.run import RunFolder


def trainer_arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    """The arguments of Hugging Face's Trainer."""
    train = recipe.train
    return TrainingArguments(
        output_dir=str(RunFolder(folder).checkpoints),
        max_steps=train.steps,
        gradient_accumulation_steps=train.accumulation,
        learning_rate=train.learning_rate,
        lr_scheduler_type="constant_with_warmup" if train.schedule == "constant" else train.schedule,
        warmup_steps=train.warmup,
        max_grad_norm=train.clip or 0.0,
        bf16=train.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        seed=recipe.seed,
        logging_steps=train.log_every,
        logging_nan_inf_filter=False,
        save_steps=train.save_every,
        eval_strategy="steps",
        eval_steps=train.eval_every,
        report_to=list(train.report_to),
        remove_unused_columns=False,
        ignore_data_skip=True,  # the stream itself starts at the right step
        disable_tqdm=True,
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=train.fixed_from is not None,  # then the encoder gets no gradient
    )


def build_optimizer(recipe: Recipe, model: Any) -> torch.optim.Optimizer:
    """AdamW, with a separate learning rate for the gates."""
    train = recipe.train
    if isinstance(model, L0DropModel):
        groups = [group for group in model.parameter_groups(train.learning_rate, train.gate_scale) if group["params"]]
    else:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": train.learning_rate}]
    return torch.optim.AdamW(
        groups,
        lr=train.learning_rate,
        betas=train.adam_betas,
        eps=train.adam_epsilon,
        weight_decay=train.weight_decay,
        fused=torch.cuda.is_available() or None,
    )
