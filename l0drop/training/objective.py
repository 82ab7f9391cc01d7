"""The objective of a training step: label-smoothed cross-entropy, divergence from a teacher, penalty.

Every term is a sum, divided by the totals of the whole optimizer step over all processes and micro-batches. So the
gradient does not depend on how the step is split.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.bart.modeling_bart import shift_tokens_right

from l0drop.core import hard_concrete
from l0drop.core.penalty import penalised
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Recipe
from l0drop.training.fast import ForwardPass
from l0drop.training.fused_loss import TokenDistillation

ELASTIC_STREAM = 1 << 20
"""A stream of keyed noise that no gate uses."""


@dataclass(frozen=True)
class Totals:
    """The divisors of an optimizer step's sums, over all processes."""

    target_tokens: int
    sentences: int


def cross_entropy_sum(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Label-smoothed cross-entropy, summed over real target tokens; smoothing covers the whole vocabulary."""
    return F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=smoothing, reduction="sum"
    )


def distillation_sum(logits: Tensor, teacher_logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) at a temperature, times its square, summed over real target tokens."""
    student = F.log_softmax(logits.float() / temperature, -1)
    teacher = F.log_softmax(teacher_logits.float() / temperature, -1)
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return (divergence * (labels != -100)).sum() * temperature**2


def stored_distillation_sum(logits_RV: Tensor, values_RK: Tensor, ids_RK: Tensor, temperature: float) -> Tensor:
    """The same, from the teacher's log-probabilities of its K most likely tokens, which are taken for all there are."""
    student_RK = F.log_softmax(logits_RV.float() / temperature, -1).gather(1, ids_RK)
    teacher_RK = F.log_softmax(values_RK / temperature, -1)
    return F.kl_div(student_RK, teacher_RK, reduction="sum", log_target=True) * temperature**2


def noise_keys(index: Tensor, step: int, seed: int) -> Tensor:
    """One key per sentence of the corpus, step and seed: the same on any process and in any batch."""
    return index.to(torch.int64) ^ (step << 32) ^ ((seed & 0xFF) << 55)


ENCODER_INPUTS = ("input_ids", "input_features", "attention_mask")


def decoder_inputs(model: Any, labels: Tensor, given: Tensor | None = None) -> dict[str, Tensor]:
    """The labels shifted to the right, or `given` ones with a prompt, for a forward pass that computes no loss."""
    if given is not None:
        return {"decoder_input_ids": given.to(labels.device)}
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    config = model.config  # M2M100 shifts inside forward only, as BART does
    return {"decoder_input_ids": shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)}


class StepLoss(NamedTuple):
    """The loss of a micro-batch, numbers for the log, and the model's output."""

    loss: Tensor
    numbers: dict[str, Tensor]
    output: Any


class Objective:
    """The loss of a micro-batch, times the number of processes, which average their gradients.

    teacher: the model whose distributions are learned, and how its forward pass runs; None without distillation,
    or if its distributions are stored with the examples.
    """

    def __init__(
        self, recipe: Recipe, model: Any, student: ForwardPass, teacher: tuple[Any, ForwardPass] | None, processes: int
    ) -> None:
        self.seed, self.train = recipe.seed, recipe.train
        self.model, self.student, self.teacher, self.processes = model, student, teacher, processes
        self.gated = isinstance(model, L0DropModel)

    def complete(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with the values of its loss that change from step to step."""
        if not self.gated:
            return {**batch, "elastic": False, "settled": False, "fixed": False}
        return {
            **batch,
            "noise_key": noise_keys(batch["index"], batch["step"], self.seed),
            "lambda": self.model.lambda_,
            "elastic": self.train.elastic and batch["step"] % 2 == 1,
            "settled": batch["step"] >= self.train.settled_from,
            "fixed": self.train.fixed_from is not None and batch["step"] >= self.train.fixed_from,
            "noise_scale": self.train.noise_scale(batch["step"]),
        }

    def __call__(self, model: Any, batch: dict[str, Any]) -> StepLoss:
        """The loss of a completed batch; `model` may be wrapped for several processes."""
        totals, labels = batch["totals"], batch["labels"]
        arguments = {name: batch[name] for name in ENCODER_INPUTS if name in batch}
        arguments |= decoder_inputs(self.model, labels, batch.get("decoder_input_ids"))
        arguments["use_cache"] = False
        dial: AbstractContextManager[Any] = nullcontext()
        if self.gated:
            arguments |= {"noise_key": batch["noise_key"], "own_loss": True, "hints": batch["hints"] or None}
            self.model.settle(batch["settled"])
            self.model.scale_noise(batch["noise_scale"])
            self.model.fix_gates(batch["fixed"])
            if batch["elastic"]:
                dial = self.model.dial(keep=self._elastic_keep(batch["noise_key"]))
            if self.processes == 1:
                self.model.training_counts = None  # `Steering` adds up the numbers of every batch itself
        with dial:
            output, states = self.student(model, arguments)
        loss, numbers = self._token_loss(output, states, batch, arguments)
        loss = loss / totals.target_tokens
        if self.gated:
            loss = penalised(
                loss, output.penalty, batch["lambda"], sentences=len(labels), of_sentences=totals.sentences
            )
            numbers |= {"penalty": output.penalty, "sparsity": output.sparsity}
            numbers |= dict(zip(("dropped", "real"), self.model.training_counts, strict=True))
            if output.gates.open_probability is not None:
                open_BN = output.gates.open_probability
                _, counted_BN = self.model.source_rows(batch["attention_mask"], open_BN)
                numbers["open"] = open_BN.masked_fill(~counted_BN, 0).sum()
        return StepLoss(loss * self.processes, numbers, output)

    def _token_loss(
        self, output: Any, states: Tensor | None, batch: dict[str, Any], arguments: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy, mixed with the divergence from the teacher, summed over target tokens; then both terms."""
        labels, smoothing, layer = batch["labels"], self.train.label_smoothing, self.student.output_layer
        if layer is not None:
            assert states is not None
            common = (states, labels, batch["real"], smoothing, output.logits)
            if self.teacher is None:
                loss = layer.loss(*common)
                return loss, {"cross_entropy": loss}
            loss, cross_entropy, divergence = layer.distilled_loss(
                *common, self._distillation(arguments, batch["real"])
            )
            return loss, {"cross_entropy": cross_entropy, "divergence": divergence}
        # only real tokens, by their known indices: a mask would have to be read from the GPU
        logits_R = output.logits.flatten(0, 1)[batch["real"]]
        labels = labels.flatten()[batch["real"]]
        cross_entropy = cross_entropy_sum(logits_R[None], labels[None], smoothing)
        teacher = self.train.teacher
        if teacher is None or teacher.weight == 0:
            return cross_entropy, {"cross_entropy": cross_entropy}
        weight, temperature = teacher.weight, teacher.temperature
        if teacher.top is not None:
            stored = batch["teacher_values"], batch["teacher_ids"]
            divergence = stored_distillation_sum(logits_R, *stored, temperature)
        else:
            teacher_R = self._teacher_pass(arguments)[0].logits.flatten(0, 1)[batch["real"]]
            divergence = distillation_sum(logits_R, teacher_R, labels, temperature)
        loss = (cross_entropy + weight * divergence) / (1 + weight)
        return loss, {"cross_entropy": cross_entropy, "divergence": divergence}

    @torch.no_grad()
    def _teacher_pass(self, arguments: dict[str, Any]) -> tuple[Any, Tensor | None]:
        assert self.teacher is not None
        model, forward = self.teacher
        names = (*ENCODER_INPUTS, "decoder_input_ids", "use_cache")
        return forward(model, {name: arguments[name] for name in names if name in arguments})

    @torch.no_grad()
    def _distillation(self, arguments: dict[str, Any], real_R: Tensor) -> TokenDistillation:
        assert self.teacher is not None
        assert self.train.teacher is not None
        layer = self.teacher[1].output_layer
        output, states = self._teacher_pass(arguments)
        assert layer is not None
        assert states is not None
        weight, temperature = self.train.teacher.weight, self.train.teacher.temperature
        return layer.distillation(states, real_R, output.logits, weight, temperature)

    def _elastic_keep(self, keys: Tensor) -> Tensor:
        low, high = self.train.elastic_range
        return low + (high - low) * hard_concrete.keyed_uniform(keys, ELASTIC_STREAM)
