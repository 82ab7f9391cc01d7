"""Hugging Face's Trainer with token-budget batches, a loss normalised over the whole step, and a steered λ.

Inherited: mixed precision, data parallelism through Accelerate, learning-rate schedules, clipping, trackers.
Ours: batches (`TokenBatches`), the objective, checkpoints that are complete or absent, evaluation by decoding, and
resumed runs that equal uninterrupted ones.
"""

import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from l0drop.core import hard_concrete
from l0drop.core.penalty import RampedLambda
from l0drop.data.batches import TokenBatches, collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.metrics import Score
from l0drop.data.sparsity import SparsityMeter
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import decode_corpus, encoder_inputs, length_batches
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Recipe
from l0drop.training.assemble import weights_stamp
from l0drop.training.bars import NO_BARS, Bars
from l0drop.training.captured import Captured
from l0drop.training.checkpoints import STAGING, clear_staging, publish
from l0drop.training.fast import (
    Compiled,
    Early,
    LowPrecision,
    OutputLayer,
    StaticGradients,
    in_low_precision,
    quick_zero_grad,
    together,
)
from l0drop.training.fused_loss import TokenDistillation
from l0drop.training.objective import (
    cross_entropy_sum,
    decoder_inputs,
    distillation_sum,
    noise_keys,
)
from l0drop.training.ragged import any_shape, plain_attention, ragged_attention
from l0drop.training.settings import build_optimizer, decoding, scored, trainer_arguments
from l0drop.training.stream import PackedStream, StepStream, unpacked

logger = logging.getLogger(__name__)

STATE = "l0drop.json"
ELASTIC_STREAM = 1 << 20  # a stream of keyed noise that no gate uses
MULTIPLE = 4
"""Lengths are padded to multiples of this if steps may be captured."""
MISCOUNTED = ("train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
"""The Trainer's final numbers that assume batches of equal size and a run that was never stopped."""


class TrainingError(ValueError):
    """A run that cannot continue; the message names the step and the remaining checkpoints."""


@dataclass
class Progress:
    """The state that a resumed run needs in addition to weights and optimizer."""

    best: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    schedule: dict[str, Any] = field(default_factory=dict)
    made_from: dict[str, str | None] | None = None
    """Digests of the training and the validation text, and of the teacher's weights."""
    compiled_at: list[list[int]] = field(default_factory=list)
    """Per process, the steps that triggered compilation."""


class _Steer(TrainerCallback):
    """Moves λ after every optimizer step."""

    def __init__(self, trainer: "L0DropTrainer") -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.steer()


class L0DropTrainer(Trainer):
    """Trains a model, gated or dense, according to a recipe."""

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
        bars: Bars = NO_BARS,
    ) -> None:
        self.recipe, self.corpora, self.references, self.tokenizers = recipe, corpora, references, tokenizers
        self.folder, self.teacher, self.bars = folder, teacher, bars
        self.progress = Progress()
        self._sums: dict[str, float] = {}
        self._log_clock = time.perf_counter()
        self._in_step = {"dropped": 0.0, "real": 0.0}
        self._compiled_at: list[int] = []
        self._to_compile_at: list[int] = []
        train = recipe.train
        on_gpu = torch.cuda.is_available()
        self.fast = on_gpu if train.fast is None else train.fast
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
        super().__init__(
            model=model,
            args=trainer_arguments(recipe, folder),
            eval_dataset=corpora["valid"],
            callbacks=callbacks,
            optimizers=(build_optimizer(recipe, model), None),
        )
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)
        self.add_callback(_Steer(self))
        self.checkpoint_folder = folder / "checkpoints"
        self.compiled = self._compile() if train.compile else None
        self.output_layer = self._output_layer(model) if self.fast else None
        # several processes sum their gradients parameter by parameter during the backward pass
        self.alone = self.accelerator.num_processes == 1
        low = self.fast and self.args.bf16 and self.alone and not self.model.is_gradient_checkpointing
        self.low_precision = LowPrecision(self.model, torch.bfloat16) if low else None
        self.teacher_output_layer: OutputLayer | None = None
        if teacher is not None:
            teacher.to(self.args.device)
            self.teacher_output_layer = self._output_layer(teacher) if self.output_layer is not None else None
            if self.teacher_output_layer is None:
                self.output_layer = None
            if low:
                in_low_precision(teacher, torch.bfloat16)
        self.compiled_teacher = Compiled(teacher) if teacher is not None and self.compiled is not None else None
        self.captured, self.gradients = None, None
        if self._may_capture():
            self.captured = Captured(self._forward, self._backward)
            self.gradients = StaticGradients(self.model, self.low_precision)
        self.batches = TokenBatches(
            corpora["train"].source_lengths,
            corpora["train"].target_lengths,
            train.batch_tokens,
            seed=recipe.seed,
            processes=self.accelerator.num_processes,
            rank=self.accelerator.process_index,
            accumulation=train.accumulation,
            # also if an obstacle prevents capturing: another gate, or another process, does not change the batches
            multiple=train.length_multiple or (MULTIPLE if self._wants_capture else None),
        )
        if self.gated and recipe.l0drop is not None and recipe.l0drop.ramp is not None:
            ramp = recipe.l0drop.ramp
            model.schedule = RampedLambda(float(recipe.l0drop.lambda_ or 0), ramp.start, ramp.end)

    def _compile(self) -> Compiled | None:
        if self.model.is_gradient_checkpointing:
            # the recomputation would draw another dropout mask than the compiled pass
            logger.warning("train.compile: ignored, because it cannot be combined with gradient checkpointing")
            return None
        return Compiled(self.model)

    def _output_layer(self, model: Any) -> OutputLayer | None:
        try:
            return OutputLayer(model, torch.bfloat16 if self.args.bf16 else None)
        except ValueError as fault:
            logger.warning("train.fast: all logits are computed (%s)", fault)
            return None

    @property
    def _wants_capture(self) -> bool:
        """Whether steps are captured if nothing prevents it."""
        asked = self.recipe.train.capture
        return self.args.device.type == "cuda" and self.fast if asked is None else asked

    def _may_capture(self) -> bool:
        """Whether steps are captured; if something prevents it, log the reason."""
        if not self._wants_capture:
            return False
        config, section = self.model.config, self.recipe.l0drop
        obstacles = {
            "there is no GPU": self.args.device.type != "cuda",
            "train.fast is off": not self.fast,
            "there are several processes": not self.alone,
            "gradient checkpointing is on": self.model.is_gradient_checkpointing,
            "layers are skipped at random (layerdrop)": any(
                getattr(config, name, 0) for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
            ),
            "the model's attention inspects its mask": config._attn_implementation != "sdpa",
            "all logits are computed": self.output_layer is None,
            "only the learned gate is known not to synchronise with the GPU": section is not None
            and section.gate != "learned",
            "l0drop.always_keep is set": section is not None and len(section.always_keep) > 0,
            "there are gates between layers": section is not None and section.layerwise,
        }
        for reason, holds in obstacles.items():
            if holds:
                logger.warning("train.capture: steps are not captured, because %s", reason)
                return False
        return True

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            if self.fast:
                stack.enter_context(ragged_attention(self.model))
                stack.enter_context(quick_zero_grad(self.model, self.gradients))
                if self.teacher is not None:
                    stack.enter_context(ragged_attention(self.teacher))
            return super().train(*args, **kwargs)

    @property
    def gated(self) -> bool:
        return isinstance(self.model, L0DropModel)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizers.source.pad_token_id)

    # --- data ----------------------------------------------------------------------------------------------------

    def _stream(self, current_step: Callable[[], int]) -> StepStream:
        return StepStream(self.batches, self.corpora["train"], self.pad_id, current_step)

    def get_train_dataloader(self) -> DataLoader:
        stream = self._stream(lambda: self.state.global_step)
        # a separate generator: the loader must not draw from the one that dropout uses
        common: dict[str, Any] = {"batch_size": None, "generator": torch.Generator()}
        if self.fast:
            # in worker processes, which are forked because the stream reads the step of this process
            count = max(1, min(3, (os.cpu_count() or 2) - 1))
            workers: dict[str, Any] = {"num_workers": count, "pin_memory": True, "multiprocessing_context": "fork"}
            return DataLoader(PackedStream(stream), **common, **(workers if self.args.device.type == "cuda" else {}))
        return DataLoader(stream, **common)

    def _batches_of(self, step: int) -> Iterator[dict[str, Any]]:
        """The micro-batches of one step, as in training."""
        stream = self._stream(lambda: step)
        batches = (unpacked(batch, self.args.device) for batch in PackedStream(stream)) if self.fast else iter(stream)
        return itertools.takewhile(lambda batch: batch["step"] == step, batches)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], int | None]:
        batches = list(itertools.islice(epoch_iterator, num_batches))
        if self.fast:
            batches = [unpacked(batch, self.args.device) for batch in batches]
        return batches, batches[0]["totals"].target_tokens if batches else None

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    # --- loss ----------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The step's loss times the number of processes, which average their gradients."""
        loss, numbers, output = self._loss(model, self._complete(inputs))
        self._early = Early(*together({"loss": loss, **numbers}))
        return (loss, output) if return_outputs else loss

    def _complete(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A batch with the values of its loss that change from step to step."""
        more: dict[str, Any] = {"elastic": False}
        if self.gated:
            keys = noise_keys(inputs["index"], inputs["step"], self.recipe.seed)
            more = {"noise_key": keys, "lambda": self.model.lambda_}
            more["elastic"] = self.recipe.train.elastic and inputs["step"] % 2 == 1
        return {**inputs, **more}

    def _loss(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor], Any]:
        train, totals, labels = self.recipe.train, inputs["totals"], inputs["labels"]
        arguments = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        arguments |= decoder_inputs(self.model, labels)
        arguments["use_cache"] = False
        dial: AbstractContextManager[Any] = nullcontext()
        if self.gated:
            keys = inputs["noise_key"]
            arguments |= {"noise_key": keys, "own_loss": True, "hints": inputs["hints"] or None}
            if inputs["elastic"]:
                dial = self.model.dial(keep=self._elastic_keep(keys))
            if self.alone:
                self.model._seen = None
        with ExitStack() as stack:
            stack.enter_context(dial)
            for path in (self.low_precision, self.compiled):
                if path is not None:
                    stack.enter_context(path.running())
            states = [] if self.output_layer is None else stack.enter_context(self.output_layer.states())
            output = model(**arguments)
        weight = 0.0 if self.teacher is None or train.teacher is None else train.teacher.weight
        if self.output_layer is None:
            loss = cross_entropy = cross_entropy_sum(output.logits, labels, train.label_smoothing)
            numbers = {"cross_entropy": cross_entropy}
            if weight and train.teacher is not None:
                teacher_logits = self._teacher_output(arguments).logits
                divergence = distillation_sum(output.logits, teacher_logits, labels, train.teacher.temperature)
                loss = (loss + weight * divergence) / (1 + weight)
                numbers["divergence"] = divergence
        else:
            common = (states[0], labels, inputs["real"], train.label_smoothing, output.logits)
            if weight and self.teacher_output_layer is not None:
                distillation = self._distillation(self.teacher_output_layer, arguments, inputs["real"])
                loss, cross_entropy, divergence = self.output_layer.distilled_loss(*common, distillation)
                numbers = {"cross_entropy": cross_entropy, "divergence": divergence}
            else:
                loss = self.output_layer.loss(*common)
                numbers = {"cross_entropy": loss}
        loss = loss / totals.target_tokens
        if self.gated:
            loss = loss + inputs["lambda"] * output.penalty * len(labels) / totals.sentences
            numbers |= {"penalty": output.penalty, "sparsity": output.sparsity}
            numbers |= dict(zip(("dropped", "real"), self.model._seen, strict=True))
            if output.gates.open_probability is not None:
                padding = inputs["attention_mask"] == 0
                numbers["open"] = output.gates.open_probability.masked_fill(padding, 0).sum()
        return loss * self.accelerator.num_processes, numbers, output

    @torch.no_grad()
    def _teacher_output(self, arguments: dict[str, Any]) -> Any:
        names = [n for n in arguments if n in ("input_ids", "attention_mask", "decoder_input_ids")]
        with ExitStack() as stack:
            if self.low_precision is not None:
                stack.enter_context(torch.autocast(self.args.device.type, torch.bfloat16))
            if self.compiled_teacher is not None:
                stack.enter_context(self.compiled_teacher.running())
            return self.teacher(**{name: arguments[name] for name in names}, use_cache=False)

    def _distillation(self, layer: OutputLayer, arguments: dict[str, Any], real: Tensor) -> TokenDistillation:
        assert self.recipe.train.teacher is not None
        weight, temperature = self.recipe.train.teacher.weight, self.recipe.train.teacher.temperature
        with torch.no_grad(), layer.states() as states:
            output = self._teacher_output(arguments)
            return layer.distillation(states[0], real, output.logits, weight, temperature)

    def _elastic_keep(self, keys: Tensor) -> Tensor:
        low, high = self.recipe.train.elastic_range
        return low + (high - low) * hard_concrete.keyed_uniform(keys, ELASTIC_STREAM)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if self.compiled is not None and self._to_compile_at:
            self._compile_again(model, self.compiled)
        loss = self._any_step(model, inputs, num_items_in_batch)
        if self.compiled is not None and self.compiled.compiled_since() and inputs["step"] not in self._compiled_at:
            self._compiled_at.append(inputs["step"])
        # the backward pass is running by now, and the numbers of the forward pass have arrived or will soon
        seen = self._early.read()
        if not math.isfinite(seen["loss"]):
            raise TrainingError(f"the loss is {seen['loss']} at step {self.state.global_step + 1}; {self._advice}")
        tokens, sentences = inputs["source_tokens"], len(inputs["labels"])
        targets = inputs["target_tokens"]
        self._add(cross_entropy=seen["cross_entropy"], target_tokens=targets, source_tokens=tokens)
        if "divergence" in seen:
            self._add(divergence=seen["divergence"])
        if self.gated:
            self._add(penalty=seen["penalty"] * sentences, sentences=sentences)
            self._add(dropped=seen["sparsity"] * tokens)
            if "open" in seen:
                self._add(open=seen["open"])
            for name in self._in_step:
                self._in_step[name] += seen[name]
        return loss

    def _any_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        return self._step(model, inputs) if self.fast else super().training_step(model, inputs, num_items_in_batch)

    def _compile_again(self, model: Any, compiled: Compiled) -> None:
        """Compile at the same batches as the run did before it was stopped, without side effects.

        Code compiled at the batch that the run resumes with would sum in another order, and end with other weights.
        """
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.accelerator.no_sync(model):
            for batch in itertools.chain.from_iterable(map(self._batches_of, self._to_compile_at)):
                self._any_step(model, batch, batch["totals"].target_tokens)
        self.model.zero_grad()
        if self.gated:
            self.model._seen = None  # with several processes it accumulates until λ moves
        compiled.compiled_since()
        self._compiled_at, self._to_compile_at = self._to_compile_at, []

    def _step(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Forward and backward pass, without visiting every module as the Trainer does."""
        if not model.training:
            model.train()
        if self.captured is not None:
            loss, self._early = self._captured_step(self.captured, inputs)
            return loss
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        if self.low_precision is not None:
            self.low_precision.collect()
        return loss.detach()

    def _captured_step(self, captured: Captured, inputs: dict[str, Any]) -> tuple[Tensor, Early]:
        inputs, totals = self._complete(inputs), inputs["totals"]
        tensors = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels", "real")}
        tensors |= {f"hints.{name}": hint for name, hint in inputs["hints"].items()}
        moving = [float(totals.target_tokens), float(totals.sentences), float(inputs.get("lambda", 0.0))]
        on_gpu = self.args.device.type == "cuda"
        tensors["moving"] = torch.tensor(moving, pin_memory=on_gpu).to(self.args.device, non_blocking=True)
        if self.gated:
            tensors["noise_key"] = inputs["noise_key"]
        return captured.step(tensors, inputs["elastic"])

    def _forward(self, tensors: dict[str, Tensor], elastic: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """The captured part of a forward pass: every value that differs between steps is a tensor."""
        tokens, sentences, lambda_ = tensors["moving"].unbind()
        hints = {name.removeprefix("hints."): t for name, t in tensors.items() if name.startswith("hints.")}
        totals: Any = SimpleNamespace(target_tokens=tokens, sentences=sentences)
        inputs = {**tensors, "hints": hints, "totals": totals, "lambda": lambda_, "elastic": elastic}
        with self.compute_loss_context_manager():
            loss, numbers, _ = self._loss(self.model_wrapped, inputs)
        return loss, {"loss": loss, **numbers}

    def _backward(self, loss: Tensor) -> None:
        loss.backward()
        if self.low_precision is not None:
            self.low_precision.collect()

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.low_precision is not None:
            return self.low_precision.clip(self.args.max_grad_norm)
        return super()._clip_grad_norm(model)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # unused; counting the parameters at every step would take milliseconds

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    # --- λ -------------------------------------------------------------------------------------------------------

    def steer(self) -> None:
        """Move λ after an optimizer step, by the sparsity that all processes have seen."""
        if not self.gated:
            return
        validation = None
        target = self.recipe.l0drop.target_sparsity if self.recipe.l0drop else None
        if target is not None and self.state.global_step % self.recipe.train.steer_every == 0:
            validation = self.measure_gates(self.recipe.evaluate.sentences).sparsity
        self.model.steer(self._sparsity_seen(), validation=validation)
        self._in_step = dict.fromkeys(self._in_step, 0.0)

    def _sparsity_seen(self) -> float | None:
        """The sparsity of the step's batches; None if this process has not seen all of them."""
        if not self.alone or not self._in_step["real"]:
            return None
        return self._in_step["dropped"] / self._in_step["real"]

    @torch.no_grad()
    def measure_gates(self, sentences: int, split: str = "valid") -> SparsityMeter:
        """Test-time gates on the first sentences of a corpus, without dropout; only the encoder runs."""
        corpus, meter = self.corpora[split], SparsityMeter()
        training = self.model.training
        self.model.eval()
        for inputs in self.encoder_batches(corpus, sentences):
            gates = self.model.get_encoder()(**inputs).gates
            meter.add(gates.values, inputs["attention_mask"], gates.open_probability)
        self.model.train(training)
        return meter

    def encoder_batches(self, corpus: TokenizedCorpus, sentences: int) -> Iterator[dict[str, Any]]:
        """The first sentences of a corpus, in batches of similar length."""
        chosen = np.arange(min(sentences, len(corpus)))
        for indices in length_batches(corpus.source_lengths[chosen], self.recipe.evaluate.batch_tokens):
            batch = collate([corpus[int(i)] for i in indices], self.pad_id)
            yield encoder_inputs(batch, self.model.device, self.gated)

    # --- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Cross-entropy, gates and the recipe's metric on a slice of the validation text."""
        self._check_weights()
        count = min(self.recipe.evaluate.sentences, len(self.corpora["valid"]))
        self.model.eval()
        score = None
        with plain_attention(self.model):
            metrics = {"eval_cross_entropy": self._validation_loss(count)}
            if self.references:
                score, meter, _ = self.score("valid", self.references[:count], count)
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
        for indices in self._own(length_batches(lengths, self.recipe.evaluate.batch_tokens)):
            batch = collate([corpus[int(i)] for i in indices], self.pad_id)
            labels = batch["labels"].to(self.model.device)
            inputs = encoder_inputs(batch, self.model.device, self.gated)
            logits = self.model(**inputs, **decoder_inputs(self.model, labels)).logits
            total += torch.tensor([cross_entropy_sum(logits, labels, 0.0).item(), (labels != -100).sum().item()])
        total = self.accelerator.reduce(total.to(self.args.device), "sum")
        return float(total[0] / total[1])

    def _own(self, batches: list[Any]) -> list[Any]:
        return batches[self.accelerator.process_index :: self.accelerator.num_processes]

    def score(self, split: str, references: list[str], count: int) -> tuple[Score, SparsityMeter, list[str]]:
        """Decode the first sentences of a corpus, each process its share, and score all outputs, which are returned."""
        own = list(range(count))[self.accelerator.process_index :: self.accelerator.num_processes]
        done = 0

        def add(sentences: int) -> None:
            nonlocal done
            done += sentences
            update(done)

        with any_shape(self.args.device), self.bars.phase(f"{split}: sentences decoded", len(own)) as update:
            update(0)
            decoded = decode_corpus(
                self.model,
                self.corpora[split],
                own,
                self.tokenizers.target,
                pad_id=self.pad_id,
                progress=add,
                **decoding(self.recipe),
            )
        texts = [""] * count
        meter = SparsityMeter()
        for indices, part in gather_object([(own, (decoded.texts, vars(decoded.meter)))]):
            for index, text in zip(indices, part[0], strict=True):
                texts[index] = text
            for name, value in part[1].items():
                setattr(meter, name, getattr(meter, name) + value)
        return scored(texts, references, self.recipe.evaluate), meter, texts

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
                if "open" in total:
                    logs["expected_open_rate"] = total["open"] / total["source_tokens"]
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
        if self.compiled is not None:
            self.progress.compiled_at = gather_object([self._compiled_at])
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                if self.gated:
                    self.progress.schedule = self.model.schedule.state_dict()
                self.progress.made_from = self._made_from
                write_whole(self.checkpoint_folder / STAGING / name / STATE, json.dumps(vars(self.progress), indent=1))
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

    @cached_property
    def _made_from(self) -> dict[str, str | None]:
        """Digests of the inputs that the weights depend on; the test text is not one, and may change in between."""
        found: dict[str, str | None] = {f"{split} text": self.corpora[split].made_from for split in ("train", "valid")}
        if self.teacher is not None and self.recipe.train.teacher is not None:
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

    def restore(self, checkpoint: Path) -> None:
        """Restore the state that the Trainer itself does not restore."""
        self.progress = Progress(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        stored = self.progress.made_from
        different = [name for name, digest in self._made_from.items() if stored and stored.get(name) != digest]
        if different:
            raise TrainingError(
                f"{checkpoint}: was trained with another {' and another '.join(different)}; restore the old one, or "
                "train under another `name` of the recipe"
            )
        if self.gated:
            self.model.schedule.load_state_dict(self.progress.schedule)
        if before := self.progress.compiled_at:
            own = self.accelerator.process_index
            # with fewer processes before, the batches differ anyway
            self._to_compile_at = before[own if own < len(before) else 0]
