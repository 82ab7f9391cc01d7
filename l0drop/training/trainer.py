"""Hugging Face's Trainer with token-budget batches, a loss normalised over the whole step, and a steered λ.

What is inherited: mixed precision, data parallelism through Accelerate, learning-rate schedules, clipping, trackers.
What is ours: the batches (`TokenBatches`), the objective, checkpoints that appear whole, evaluation by decoding, and a
resumed run that equals an uninterrupted one.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from l0drop.core import hard_concrete
from l0drop.core.penalty import RampedLambda
from l0drop.data.batches import TokenBatches, collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.metrics import Score, SparsityMeter, bleu, bleu_paper, chrf, rouge
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import decode_corpus, encoder_inputs, length_batches
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Evaluate, Recipe
from l0drop.training.checkpoints import STAGING, clear_staging, publish
from l0drop.training.objective import (
    Totals,
    cross_entropy_sum,
    decoder_inputs,
    distillation_sum,
    noise_keys,
)

STATE = "l0drop.json"
ELASTIC_STREAM = 1 << 20  # a stream of keyed noise that no gate uses


class TrainingError(ValueError):
    """A run that cannot go on; the message says at which step and what is left."""


@dataclass
class Progress:
    """What outlives an interruption beside weights and optimizer."""

    best: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    schedule: dict[str, Any] = field(default_factory=dict)


class StepStream(IterableDataset):
    """The micro-batches of this process, from the trainer's present step on."""

    def __init__(
        self, batches: TokenBatches, corpus: TokenizedCorpus, pad_id: int, present_step: Callable[[], int]
    ) -> None:
        self.batches, self.corpus, self.pad_id, self.present_step = batches, corpus, pad_id, present_step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = self.present_step()
        for step, content in enumerate(self.batches.steps_from(start), start):
            for indices in content.mine:
                batch = collate([self.corpus[int(i)] for i in indices], self.pad_id)
                yield {**batch, "step": step, "totals": Totals(content.target_tokens, content.sentences)}


class _Steer(TrainerCallback):
    """Moves λ after every optimizer step."""

    def __init__(self, trainer: "L0DropTrainer") -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.steer()


class L0DropTrainer(Trainer):
    """Trains a model, sparsified or not, as a recipe says."""

    model: Any
    loss_is_scaled_for_ga = True  # sums are divided by the totals of the whole optimizer step

    def __init__(
        self,
        recipe: Recipe,
        model: Any,
        corpora: dict[str, TokenizedCorpus],
        references: list[str],
        tokenizers: TokenizerPair,
        folder: Path,
        teacher: Any = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        self.recipe, self.corpora, self.references, self.tokenizers = recipe, corpora, references, tokenizers
        self.folder, self.teacher = folder, teacher
        self.progress = Progress()
        self._sums: dict[str, float] = {}
        self._log_clock = time.perf_counter()
        train = recipe.train
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
        super().__init__(
            model=model,
            args=_arguments(recipe, folder),
            eval_dataset=corpora["valid"],
            callbacks=callbacks,
            optimizers=(_optimizer(recipe, model), None),
        )
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)
        self.add_callback(_Steer(self))
        self.checkpoint_folder = folder / "checkpoints"
        self.batches = TokenBatches(
            corpora["train"].source_lengths,
            corpora["train"].target_lengths,
            train.batch_tokens,
            seed=recipe.seed,
            processes=self.accelerator.num_processes,
            rank=self.accelerator.process_index,
            accumulation=train.accumulation,
        )
        if teacher is not None:
            teacher.to(self.args.device)
        if self.gated and recipe.l0drop is not None and recipe.l0drop.ramp is not None:
            ramp = recipe.l0drop.ramp
            model.schedule = RampedLambda(float(recipe.l0drop.lambda_ or 0), ramp.start, ramp.end)

    @property
    def gated(self) -> bool:
        return isinstance(self.model, L0DropModel)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizers.source.pad_token_id)

    # --- data ----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        stream = StepStream(self.batches, self.corpora["train"], self.pad_id, lambda: self.state.global_step)
        # a generator of its own: the loader must not draw from the one that dropout uses
        return DataLoader(stream, batch_size=None, generator=torch.Generator())

    # --- loss ----------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The step's loss times the number of processes, which average their gradients."""
        train, totals, labels = self.recipe.train, inputs["totals"], inputs["labels"]
        arguments = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        arguments |= decoder_inputs(self.model, labels)
        dial: AbstractContextManager[Any] = nullcontext()
        if self.gated:
            keys = noise_keys(inputs["index"], inputs["step"], self.recipe.seed)
            arguments |= {"noise_key": keys, "own_loss": True, "hints": inputs["hints"] or None}
            if train.elastic and inputs["step"] % 2:
                dial = self.model.dial(keep=self._elastic_keep(keys))
        with dial:
            output = model(**arguments)
        cross_entropy = cross_entropy_sum(output.logits, labels, train.label_smoothing)
        loss = cross_entropy
        if self.teacher is not None and train.teacher is not None and train.teacher.weight:
            weight = train.teacher.weight
            with torch.no_grad():
                names = [n for n in arguments if n in ("input_ids", "attention_mask", "decoder_input_ids", "labels")]
                taught = self.teacher(**{name: arguments[name] for name in names}).logits
            divergence = distillation_sum(output.logits, taught, labels, train.teacher.temperature)
            loss = (loss + weight * divergence) / (1 + weight)
            self._add(divergence=divergence)
        loss = loss / totals.target_tokens
        self._add(cross_entropy=cross_entropy, target_tokens=(labels != -100).sum())
        self._add(source_tokens=inputs["attention_mask"].sum())
        if self.gated:
            rows = len(labels)
            loss = loss + self.model.lambda_ * output.penalty * rows / totals.sentences
            open_rate = (
                0.0
                if output.gates.open_probability is None
                else output.gates.open_probability[inputs["attention_mask"].bool()].sum()
            )
            tokens = inputs["attention_mask"].sum()
            self._add(penalty=output.penalty * rows, sentences=rows, dropped=output.sparsity * tokens, open=open_rate)
        loss = loss * self.accelerator.num_processes
        return (loss, output) if return_outputs else loss

    def _elastic_keep(self, keys: Tensor) -> Tensor:
        low, high = self.recipe.train.elastic_range
        draw = hard_concrete.keyed_uniforms(keys, torch.zeros_like(keys)[:, None], ELASTIC_STREAM)
        return low + (high - low) * draw[:, 0]

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; the last good checkpoint stands in "
                f"{self.checkpoint_folder}. Lower train.learning_rate or train.clip, then run the same command again"
            )
        return loss

    def _add(self, **values: Any) -> None:
        for name, value in values.items():
            amount = value.detach().double().item() if isinstance(value, Tensor) else float(value)
            self._sums[name] = self._sums.get(name, 0.0) + amount

    # --- λ -------------------------------------------------------------------------------------------------------

    def steer(self) -> None:
        """Move λ after an optimizer step, by what all processes have seen."""
        if not self.gated:
            return
        validation = None
        target = self.recipe.l0drop.target_sparsity if self.recipe.l0drop else None
        if target is not None and self.state.global_step % self.recipe.train.steer_every == 0:
            validation = self.measure_gates(self.recipe.evaluate.sentences).sparsity
        self.model.steer(validation=validation)

    @torch.no_grad()
    def measure_gates(self, sentences: int, split: str = "valid") -> SparsityMeter:
        """Test-time gates on the first sentences of a corpus, dropout off; the encoder alone runs."""
        corpus, meter = self.corpora[split], SparsityMeter()
        training = self.model.training
        self.model.eval()
        for inputs in self.encoder_batches(corpus, sentences):
            gates = self.model.get_encoder()(**inputs).gates
            meter.add(gates.values, inputs["attention_mask"], gates.open_probability)
        self.model.train(training)
        return meter

    def encoder_batches(self, corpus: TokenizedCorpus, sentences: int) -> Iterator[dict[str, Any]]:
        """The first sentences of a corpus, in batches of like length."""
        chosen = np.arange(min(sentences, len(corpus)))
        for rows in length_batches(corpus.source_lengths[chosen], self.recipe.evaluate.batch_tokens):
            batch = collate([corpus[int(i)] for i in rows], self.pad_id)
            yield encoder_inputs(batch, self.model.device, self.gated)

    # --- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Cross-entropy, gates and the recipe's metric on a slice of the validation text."""
        count = min(self.recipe.evaluate.sentences, len(self.corpora["valid"]))
        self.model.eval()
        metrics = {"eval_cross_entropy": self._validation_loss(count)}
        score = None
        if self.references:
            score, meter = self.score("valid", self.references[:count], count)
            metrics[f"eval_{score.name}"] = score.value
            if self.gated:
                metrics["eval_sparsity"] = meter.sparsity
        self.model.train()
        self.log(metrics)
        better = score.value if score is not None else -metrics["eval_cross_entropy"]
        self._remember(better)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _remember(self, value: float) -> None:
        progress, patience = self.progress, self.recipe.train.patience
        if progress.best is None or value > progress.best:
            progress.best, progress.best_step = value, self.state.global_step
            progress.evaluations_without_improvement = 0
        else:
            progress.evaluations_without_improvement += 1
        if patience is not None and progress.evaluations_without_improvement >= patience:
            progress.stopped_early = True
            self.control.should_save = self.control.should_training_stop = True

    @torch.no_grad()
    def _validation_loss(self, count: int) -> float:
        corpus = self.corpora["valid"]
        if corpus.target_lengths is None:
            return math.nan
        total = torch.zeros(2, dtype=torch.float64)
        lengths = np.maximum(corpus.source_lengths, corpus.target_lengths)[:count]
        for rows in self._own(length_batches(lengths, self.recipe.evaluate.batch_tokens)):
            batch = collate([corpus[int(i)] for i in rows], self.pad_id)
            labels = batch["labels"].to(self.model.device)
            inputs = encoder_inputs(batch, self.model.device, self.gated)
            logits = self.model(**inputs, **decoder_inputs(self.model, labels)).logits
            total += torch.tensor([cross_entropy_sum(logits, labels, 0.0).item(), (labels != -100).sum().item()])
        total = self.accelerator.reduce(total.to(self.args.device), "sum")
        return float(total[0] / total[1])

    def _own(self, batches: list[Any]) -> list[Any]:
        return batches[self.accelerator.process_index :: self.accelerator.num_processes]

    def score(self, split: str, references: list[str], count: int) -> tuple[Score, SparsityMeter]:
        """Decode the first sentences of a corpus, each process its share, and score them together."""
        own = list(range(count))[self.accelerator.process_index :: self.accelerator.num_processes]
        decoded = decode_corpus(
            self.model, self.corpora[split], own, self.tokenizers.target, pad_id=self.pad_id, **decoding(self.recipe)
        )
        texts = [""] * count
        meter = SparsityMeter()
        for indices, part in gather_object([(own, (decoded.texts, vars(decoded.meter)))]):
            for index, text in zip(indices, part[0], strict=True):
                texts[index] = text
            for name, value in part[1].items():
                setattr(meter, name, getattr(meter, name) + value)
        return scored(texts, references, self.recipe.evaluate), meter

    # --- logging -------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        sums, self._sums = (self._sums, {}) if "loss" in logs else ({}, self._sums)
        if sums:
            seconds, self._log_clock = time.perf_counter() - self._log_clock, time.perf_counter()
            parts = gather_object([sums])
            total = {name: sum(part.get(name, 0.0) for part in parts) for name in sums}
            logs["cross_entropy"] = total["cross_entropy"] / total["target_tokens"]
            logs["tokens_per_second"] = (total["source_tokens"] + total["target_tokens"]) / seconds
            if "divergence" in total:
                logs["divergence"] = total["divergence"] / total["target_tokens"]
            if self.gated:
                logs["penalty"] = total["penalty"] / total["sentences"]
                logs["sparsity"] = total["dropped"] / total["source_tokens"]
                logs["expected_open_rate"] = total["open"] / total["source_tokens"]
                logs["lambda"] = self.model.lambda_
        super().log(logs, start_time)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoint_folder / STAGING)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                if self.gated:
                    self.progress.schedule = self.model.schedule.state_dict()
                write_whole(self.checkpoint_folder / STAGING / name / STATE, json.dumps(vars(self.progress), indent=1))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(self.checkpoint_folder, name, self.recipe.train.keep_checkpoints)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError) as error:
            # torch and safetensors report a full disk as RuntimeError
            clear_staging(self.checkpoint_folder)
            raise TrainingError(
                f"{self.checkpoint_folder / name} could not be saved at step {self.state.global_step}: {error}. "
                "Earlier checkpoints are whole; make room, then run the same command again"
            ) from error

    def restore(self, checkpoint: Path) -> None:
        """Take up what a checkpoint says beside what the Trainer itself restores."""
        self.progress = Progress(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        if self.gated:
            self.model.schedule.load_state_dict(self.progress.schedule)


def decoding(recipe: Recipe) -> dict[str, Any]:
    """How a recipe decodes, as arguments of `decode_corpus`."""
    evaluate = recipe.evaluate
    return {
        "batch_tokens": evaluate.batch_tokens,
        "beams": evaluate.beams,
        "length_penalty": evaluate.length_penalty,
        "max_new_tokens": evaluate.max_new_tokens or recipe.data.max_target,
    }


def scored(texts: list[str], references: list[str], evaluate: Evaluate) -> Score:
    """The recipe's metric."""
    match evaluate.metric:
        case "bleu":
            return bleu(texts, references, evaluate.tokenize)
        case "bleu_paper":
            return bleu_paper(texts, references)
        case "chrf":
            return chrf(texts, references)
        case "rouge":
            return rouge(texts, references)


def _arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    train = recipe.train
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
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
        ignore_data_skip=True,  # the stream starts at the right step by itself
        disable_tqdm=True,
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,
    )


def _optimizer(recipe: Recipe, model: Any) -> torch.optim.Optimizer:
    train = recipe.train
    if isinstance(model, L0DropModel):
        groups = [group for group in model.parameter_groups(train.learning_rate, train.gate_scale) if group["params"]]
    else:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": train.learning_rate}]
    return torch.optim.AdamW(
        groups, lr=train.learning_rate, betas=train.adam_betas, eps=train.adam_epsilon, weight_decay=train.weight_decay
    )
