"""Hugging Face's Trainer with token-budget batches, a loss normalised over the whole step, and a steered λ.

Inherited: mixed precision, data parallelism through Accelerate, learning-rate schedules, clipping, trackers.
Ours: batches (`TokenBatches`), the loss (`Objective`), faster steps (`FastPath`), evaluation by decoding (`Scoring`),
checkpoints that are complete or absent, and resumed runs that equal uninterrupted ones.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from l0drop.core.penalty import Calibration
from l0drop.data.clips import ClipCorpus, unpacked_windows
from l0drop.data.tokenizer import TokenizerPair
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Recipe
from l0drop.runs.checkpoint import STATE, ResumeState
from l0drop.runs.run import RunFolder
from l0drop.training.assemble import weights_stamp
from l0drop.training.bars import NO_BARS, Bars
from l0drop.training.captured import CapturedSteps
from l0drop.training.checkpoints import STAGING, TrainingError, clear_staging, publish, resume_state
from l0drop.training.compiled import Compiled
from l0drop.training.examples import RunCorpus, training_batches
from l0drop.training.fast import FastPath
from l0drop.training.log_sums import LogSums
from l0drop.training.objective import Objective
from l0drop.training.ragged import any_shape, plain_attention
from l0drop.training.scoring import Scoring
from l0drop.training.settings import build_optimizer, trainer_arguments
from l0drop.training.steering import FixedGates, Steering
from l0drop.training.stream import PackedStream, StepStream, unpacked
from l0drop.training.transfers import Early, together

MISCOUNTED = ("train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
"""The Trainer's final numbers that assume batches of equal size and a run that was never stopped."""


class L0DropTrainer(Trainer):
    """Trains a model, gated or dense, according to a recipe."""

    model: Any
    loss_is_scaled_for_ga = True  # sums are divided by the totals of the whole optimizer step

    def __init__(
        self,
        recipe: Recipe,
        model: Any,
        corpora: Mapping[str, RunCorpus],
        references: list[str],
        tokenizers: TokenizerPair,
        folder: Path,
        teacher: Any = None,
        callbacks: list[Any] | None = None,
        bars: Bars = NO_BARS,
    ) -> None:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(RunFolder(folder).tensorboard))
        super().__init__(
            model=model,
            args=trainer_arguments(recipe, folder),
            eval_dataset=corpora["valid"],
            callbacks=callbacks,
            optimizers=(build_optimizer(recipe, model), None),
        )
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)
        self.recipe, self.corpora, self.references = recipe, corpora, references
        self.checkpoint_folder = RunFolder(folder).checkpoints
        self.gated = isinstance(model, L0DropModel)
        self.resume_state, self.sums = ResumeState(), LogSums()
        if teacher is not None:
            teacher.to(self.args.device)
        processes = self.accelerator.num_processes
        alone = processes == 1
        self.fast = FastPath(recipe, model, teacher, device=self.args.device, bf16=self.args.bf16, alone=alone)
        taught_by = None if self.fast.teacher is None else (teacher, self.fast.teacher)
        self.objective: Objective = Objective(recipe, model, self.fast.student, taught_by, processes)
        self.captured: CapturedSteps | None = None
        if self.fast.captures:
            precision = self.compute_loss_context_manager
            self.captured = CapturedSteps(
                self.objective, self.fast.low_precision, precision, lambda: self.model_wrapped
            )
        self.scoring = Scoring(recipe, model, corpora, tokenizers, self.accelerator, bars)
        self.steering: Steering | None = None
        if self.gated:
            has_target = recipe.l0drop is not None and recipe.l0drop.target_sparsity is not None
            every = recipe.train.steer_every if has_target else None
            until = recipe.train.fixed_from
            self.steering = Steering(model, every, self.scoring.validation_sparsity, alone=alone, until=until)
            self.add_callback(self.steering)
            if until is not None:
                self.add_callback(FixedGates(model, until, self.held_out))
        self.batches = training_batches(
            recipe,
            corpora["train"],
            processes=processes,
            rank=self.accelerator.process_index,
            multiple=self.fast.length_multiple,
        )
        self._to_compile_at: list[int] = []

    def train(self, *args: Any, **kwargs: Any) -> Any:
        shapes_change = any_shape(self.args.device) if self.recipe.is_audio else nullcontext()
        with shapes_change, self.fast.running():
            return super().train(*args, **kwargs)

    # --- data ----------------------------------------------------------------------------------------------------

    def _stream(self, current_step: Callable[[], int]) -> StepStream:
        return StepStream(self.batches, self.corpora["train"], self.scoring.pad_id, current_step)

    def get_train_dataloader(self) -> DataLoader:
        stream = self._stream(lambda: self.state.global_step)
        # a separate generator: the loader must not draw from the one that dropout uses
        common: dict[str, Any] = {"batch_size": None, "generator": torch.Generator()}
        if self.fast.on:
            # in worker processes, which are forked because the stream reads the step of this process
            count = max(1, min(3, (os.cpu_count() or 2) - 1))
            workers: dict[str, Any] = {"num_workers": count, "pin_memory": True, "multiprocessing_context": "fork"}
            return DataLoader(PackedStream(stream), **common, **(workers if self.args.device.type == "cuda" else {}))
        return DataLoader(stream, **common)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], int | None]:
        batches = list(itertools.islice(epoch_iterator, num_batches))
        if self.fast.on:
            batches = [unpacked(batch, self.args.device) for batch in batches]
        if isinstance(corpus := self.corpora["train"], ClipCorpus):
            batches = [unpacked_windows(batch, corpus.window, self.args.device) for batch in batches]
        return batches, batches[0]["totals"].target_tokens if batches else None

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    # --- steps ---------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        compiled = self.fast.compiled
        if compiled is not None and self._to_compile_at:
            self._compile_again(model, compiled)
        loss = self._run_step(model, inputs, num_items_in_batch)
        if compiled is not None:
            compiled.note(inputs["step"])
        # the backward pass is running by now, and the numbers of the forward pass have arrived or will soon
        numbers = self._early.read()
        if not math.isfinite(numbers["loss"]):
            raise TrainingError(f"the loss is {numbers['loss']} at step {self.state.global_step + 1}; {self._advice}")
        self.sums.add(numbers, inputs)
        if self.steering is not None:
            self.steering.add(numbers["dropped"], numbers["real"])
        return loss

    def _run_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        if not self.fast.on:
            return super().training_step(model, inputs, num_items_in_batch)
        if not model.training:  # the Trainer would visit every module
            model.train()
        if self.captured is not None:
            loss, self._early = self.captured.step(inputs, self.args.device)
            return loss
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        if self.fast.low_precision is not None:
            self.fast.low_precision.collect()
        return loss.detach()

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, numbers, output = self.objective(model, self.objective.complete(inputs))
        self._early = Early(*together({"loss": loss, **numbers}))
        return (loss, output) if return_outputs else loss

    def _compile_again(self, model: Any, compiled: Compiled) -> None:
        """Compile at the same batches as the run did before it was stopped, without side effects.

        Code compiled at the batch that the run resumes with would sum in another order, and end with other weights.
        """
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.accelerator.no_sync(model):
            for batch in itertools.chain.from_iterable(map(self._batches_of, self._to_compile_at)):
                self._run_step(model, batch, batch["totals"].target_tokens)
        self.model.zero_grad()
        if self.gated:
            self.model.training_counts = None  # with several processes they add up until λ moves
        compiled.repeated(self._to_compile_at)
        self._to_compile_at = []

    def _batches_of(self, step: int) -> Iterator[dict[str, Any]]:
        """The micro-batches of one step, as in training."""
        stream = self._stream(lambda: step)
        on = self.fast.on
        batches = (unpacked(batch, self.args.device) for batch in PackedStream(stream)) if on else iter(stream)
        return itertools.takewhile(lambda batch: batch["step"] == step, batches)

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.fast.low_precision is not None:
            return self.fast.low_precision.clip(self.args.max_grad_norm)
        return super()._clip_grad_norm(model)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # unused; counting the parameters at every step would take milliseconds

    def held_out(self) -> Iterator[dict[str, Any]]:
        """The encoder inputs of the whole validation text, for the calibration."""
        valid = self.corpora["valid"]
        return self.scoring.encoder_batches(valid, len(valid))

    # --- evaluation and logging ----------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Cross-entropy, gates and the recipe's metric on a slice of the validation text."""
        self._check_weights()
        count = min(self.recipe.evaluate.sentences, len(self.corpora["valid"]))
        self.model.eval()
        with plain_attention(self.model):
            metrics = {"eval_cross_entropy": self.scoring.validation_loss(count)}
            value = -metrics["eval_cross_entropy"]
            if self.references:
                score, meter, _ = self.scoring.score("valid", self.references[:count])
                value = metrics[f"eval_{score.name}"] = score.value
                if self.recipe.is_audio:
                    value = -value  # an error rate
                if self.gated:
                    metrics["eval_sparsity"] = meter.sparsity
        self.model.train()
        self.log(metrics)
        self.resume_state.remember(value, self.state.global_step, self.recipe.train.patience)
        if self.resume_state.stopped_early:
            self.control.should_save = self.control.should_training_stop = True
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        means = self.sums.entry() if "loss" in logs else {}
        logs.update(means)
        if means and self.gated:
            logs["lambda"] = self.model.lambda_
        for name in MISCOUNTED:
            logs.pop(name, None)
        # the Trainer treats the endless stream as one epoch, and restarts its count when a run resumes
        state: Any = self.state
        epoch, state.epoch = state.epoch, None
        super().log(logs, start_time)
        state.epoch = epoch

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoint_folder / STAGING)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._check_weights()
        if self.fast.compiled is not None:
            self.resume_state.compiled_at = gather_object([self.fast.compiled.steps])
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                if self.gated:
                    self.resume_state.schedule = self.model.schedule.state_dict()
                    made: Calibration | None = self.model.calibration
                    self.resume_state.calibration = None if made is None else asdict(made)
                self.resume_state.made_from = self._made_from
                self.resume_state.write(self.checkpoint_folder / STAGING / name / STATE)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(self.checkpoint_folder, name, self.recipe.train.keep_checkpoints, self.recipe.train.save_every)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError) as error:
            # torch and safetensors report a full disk as RuntimeError
            clear_staging(self.checkpoint_folder)
            raise TrainingError(
                f"{self.checkpoint_folder / name} could not be saved at step {self.state.global_step}: {error}. "
                "Earlier checkpoints are intact; make room, then run the same command again"
            ) from error

    def restore(self, checkpoint: Path) -> None:
        """Restore the state that the Trainer itself does not restore."""
        self.resume_state = resume_state(checkpoint, self._made_from)
        if self.gated:
            self.model.schedule.load_state_dict(self.resume_state.schedule)
            made = self.resume_state.calibration
            self.model.calibration = None if made is None else Calibration(**made)
        self._to_compile_at = self.resume_state.compiled_by(self.accelerator.process_index)

    @cached_property
    def _made_from(self) -> dict[str, str | None]:
        """Digests of the inputs that the weights depend on; the test text is not one, and may change in between."""
        found: dict[str, str | None] = {f"{split} text": self.corpora[split].made_from for split in ("train", "valid")}
        if self.fast.teacher is not None and self.recipe.train.teacher is not None:
            name = self.recipe.train.teacher.model
            name = (self.recipe.model.init or self.recipe.model.pretrained or name) if name == "init" else name
            found["teacher"] = weights_stamp(name)
        return found

    def _check_weights(self) -> None:
        """Refuse weights that are not finite, which a gradient may cause before the next loss shows it."""
        if not bool(torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()]).all()):
            raise TrainingError(f"weights are not finite after step {self.state.global_step}; {self._advice}")

    @property
    def _advice(self) -> str:
        return (
            f"the last good checkpoint is in {self.checkpoint_folder}. Train again under another `name` of the recipe, "
            "with a lower train.learning_rate or train.clip"
        )
