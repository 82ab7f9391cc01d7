"""The user's controls on a sparsified model: dial, λ, optimizer groups, explanations, calibration."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from l0drop.core.dial import Dial, Dials, dial_of
from l0drop.core.gates import LearnedGate
from l0drop.core.penalty import (
    TOLERANCE,
    Calibration,
    ConstantLambda,
    LambdaSchedule,
    RampedLambda,
    Sentences,
    SteeredLambda,
    calibrate,
)
from l0drop.core.values import number, share
from l0drop.models.calibration import calibration_inputs, open_between_layers
from l0drop.models.config import DEFAULT_LAMBDA
from l0drop.models.dial_context import DialContext
from l0drop.models.encoding import Encoding
from l0drop.models.outputs import Explanation
from l0drop.models.view import eval_view, evaluating

UNSTEERED = 100
"""Training steps with a target but without `steer` after which the model warns: a third of the default ramp."""


class Controls(Encoding):
    """The part of `L0DropModel` that users call in their own training loop."""

    schedule: LambdaSchedule
    calibration: Calibration | None = None
    _steps_unsteered: int = 0
    training_counts: tuple[Tensor, Tensor] | None = None
    """Dropped and real tokens of the training batches that `forward` has seen in this process since λ was last moved.
    A loop that adds them up itself sets this to None before each batch."""

    def set_schedule(self, rise: tuple[int, int] | None = None, **steering: Any) -> None:
        """Choose the schedule of λ that the config asks for: a controller for a target sparsity, otherwise a constant.

        rise: let a constant λ rise from 0 at the first of these steps to its value at the second.
        steering: arguments of `SteeredLambda`, such as `ramp`.
        """
        l0drop = self.config.l0drop
        value = l0drop.lambda_
        if value is None:
            value = DEFAULT_LAMBDA if self.shortener is None else 0.0
        if l0drop.target_sparsity is not None:
            self.schedule = SteeredLambda(l0drop.target_sparsity, **steering)
        elif rise is not None:
            self.schedule = RampedLambda(value, *rise)
        else:
            self.schedule = ConstantLambda(value)

    @property
    def lambda_(self) -> float:
        """The current weight of the penalty."""
        return self.schedule.value

    @lambda_.setter
    def lambda_(self, value: float) -> None:
        value = number("lambda_", value)
        if value < 0:
            raise ValueError(f"lambda_: expected a number that is not negative, got {value}")
        self.schedule.value = value

    def dial(
        self,
        keep: float | Tensor | Sequence[float | None] | None = None,
        max_memory: int | Sequence[int | None] | None = None,
        shift: float | Sequence[float | None] | None = None,
        dense: bool | Sequence[bool] = False,
    ) -> DialContext:
        """Keep more or fewer encodings than the model chose by itself, inside a `with` block; see `Dial`.

            with model.dial(keep=0.3):
                tokens = model.generate(**inputs)

        A list has one setting per sentence of the batch, None where it is unset; for decoding only.

        It acts in the thread or asyncio task that entered the block; others set their own. Of nested dials the
        innermost counts. In training, half of the sentences keep the rows that `keep` selects; in
        the others, gates are sampled around the border between kept and dropped rows, so that the gate learns the order
        of rows. `shift` works in decoding only.
        """
        self._require_enabled()
        if self.training and shift is not None:
            raise ValueError("shift: moves the test-time gate; in training, use keep")
        dial = dial_of(keep, max_memory, shift, dense)
        self._require_gate("dial", dial)
        if self.training and isinstance(dial, Dials):
            raise ValueError("dial: a list of settings works in decoding only; in training, use a tensor keep")
        return DialContext(self._dial_key, dial)

    def training_sparsity(self) -> float | None:
        """The sparsity of the training batches that `forward` has seen since the last `steer`, over all processes.

        None if it has seen none. Every process must call it equally often.
        """
        if self.training_counts is None:
            return None
        counts = torch.stack([torch.as_tensor(n, dtype=torch.float64) for n in self.training_counts])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(counts)
        return float(counts[0] / counts[1])

    def steer(self, sparsity: float | Tensor | None = None, *, validation: float | Tensor | None = None) -> float:
        """Move λ towards the target sparsity, or along its schedule, and return it. Call it once per optimizer step.

        sparsity: of the step's training batches, as `output.sparsity` says; default: `training_sparsity()`.
        validation: the sparsity on held-out text, at steps where you measured it.

        Pass the same numbers in all processes, or their λ drift apart.
        """
        self._require_gate("steer")
        measured = None if sparsity is None else share("sparsity", sparsity)
        held_out = None if validation is None else share("validation", validation)
        if measured is None:
            measured = self.training_sparsity()
        self.training_counts = None
        return self.schedule.step(measured, held_out)

    def _warn_if_never_steered(self) -> None:
        if torch.compiler.is_compiling() or not isinstance(self.schedule, SteeredLambda):
            return
        self._steps_unsteered = 0 if self.schedule.steps else self._steps_unsteered + 1
        if self._steps_unsteered == UNSTEERED:
            warnings.warn(
                f"target_sparsity is set, but λ was never steered in {UNSTEERED} training steps, so the model will not "
                "reach it: call model.steer() after every optimizer step, or give the Trainer "
                "callbacks=[l0drop.SteerCallback()]",
                stacklevel=3,
            )

    def settle(self, settled: bool) -> None:
        """Let learned gates use their test-time values in training, for the last steps of a run, or sample again."""
        for module in (self.gate, *self.inner_gates):
            if isinstance(module, LearnedGate):
                module.settled = settled

    def scale_noise(self, scale: float | Tensor | None) -> None:
        """Scale the noise from which learned gates are sampled in training, 0 to 1; None: the full noise.

        A number becomes a tensor on the gates' device, so that compiled steps need not be compiled again.
        """
        for module in (self.gate, *self.inner_gates):
            if isinstance(module, LearnedGate):
                if scale is None or isinstance(scale, Tensor):
                    module.noise_scale = scale
                else:
                    module.noise_scale = torch.full((), float(scale), device=module.weight.device)

    def fix_gates(self, fixed: bool = True) -> None:
        """Let only the decoder learn from now on, with the rows that the gates keep in decoding; False ends this.

        Encoder and gates stay as they are: their parameters get no gradient, and they run in eval mode, so without
        dropout, and gates have their test-time values. A parameter that the decoder shares with them, such as a table
        of embeddings, is fixed too: if it moved, the encodings would change, and with them the gates. Bring the gates
        to their target first, with `calibrate`.
        """
        if fixed == (self._fixed is not None):
            return
        if self._fixed is not None:
            for parameter in self._fixed:
                parameter.requires_grad_(True)
            self._fixed = None
        else:
            unique = {id(p): p for module in self._before_decoder() for p in module.parameters() if p.requires_grad}
            self._fixed = list(unique.values())
            for parameter in self._fixed:
                parameter.requires_grad_(False)
                parameter.grad = None
        self.train(self.training)

    def _before_decoder(self) -> tuple[nn.Module, ...]:
        """The encoder and all gates."""
        return self.base_class.get_encoder(self), self.gate, self.inner_gates

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._fixed is not None:
            for module in self._before_decoder():
                module.eval()
        return self

    def _require_enabled(self) -> None:
        if not self.config.l0drop.enabled:
            raise ValueError("enabled: the model runs ungated; set model.config.l0drop.enabled = True first")

    def _require_gate(self, method: str, dial: Dial | Dials | None = None) -> None:
        """Raise ValueError for a model with a shortener, for a method that is about gates.

        Only the error makes a text of the dial: that of a tensor waits for the GPU.
        """
        if self.shortener is not None:
            given = "" if dial is None else f"({dial})"
            raise ValueError(
                f"{method}{given}: acts on gates, and this model's memory comes from its shortener, "
                f"{type(self.shortener).__name__}, whose arguments say how many rows it keeps (shortener_args)"
            )

    def parameter_groups(self, lr: float, gate_scale: float = 30) -> list[dict[str, Any]]:
        """Optimizer groups: gates learn at `gate_scale` times `lr`, because an open gate's L0 gradient is tiny."""
        gates = [p for module in (self.gate, self.inner_gates) for p in module.parameters() if p.requires_grad]
        gate_ids = {id(p) for p in gates}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in gate_ids]
        return [{"params": rest, "lr": lr}, {"params": gates, "lr": lr * gate_scale, "weight_decay": 0.0}]

    @torch.no_grad()
    def explain(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> list[Explanation]:
        """Test-time gates, log α and kept positions of each sentence, counted in its real tokens.

            model.explain(**tokenizer(["The house is small."], return_tensors="pt"))

        For Whisper, pass `input_features`: positions are rows of 20 ms, and `attention_mask` says which of them audio
        covers.
        """
        self._require_enabled()
        self._require_gate("explain")
        if self.family.reads_audio:
            self.check_coverage(attention_mask)
        else:
            _require_ids(input_ids)
            kwargs["input_ids"] = input_ids
        encoder = eval_view(self).get_encoder()
        gates = encoder(attention_mask=attention_mask, hints=hints, **kwargs).gates
        mask_BN, counted_BN = self.source_rows(attention_mask, gates.values)
        explanations = []
        for sentence, real in enumerate(mask_BN):
            values = gates.values[sentence, real]
            log_alpha = None if gates.log_alpha is None else gates.log_alpha[sentence, real]
            kept = (values != 0).nonzero().flatten().tolist()
            explanations.append(Explanation(values, log_alpha, kept, counted_BN[sentence, real]))
        return explanations

    @torch.no_grad()
    def calibrate(
        self, batches: Iterable[Mapping[str, Any]], target: float | None = None, *, force: bool = False
    ) -> Calibration:
        """Bring the sparsity on held-out text to the target by moving the log α at which gates close.

        batches: an iterable of encoder inputs (input_ids, attention_mask, ...); labels are ignored.
        target: default: `target_sparsity` of the config.
        force: close gates however many it takes.

        Other gates stay as they are. Opening a few gates that training had closed costs nothing. Closing gates that
        it had left open does: the decoder has never done without those encodings. So this raises ValueError, and
        changes nothing, if it would have to close more than 5 points (`MOST_CLOSED`), and warns above 1 point.

        If gates between layers have removed more rows than the target allows, which the last gate cannot bring back,
        their thresholds are lowered as well, all by the same amount (`Calibration.inner_moved`).
        """
        self._require_gate("calibrate")
        wanted = self.config.l0drop.target_sparsity if target is None else share("target", target)
        if wanted is None:
            raise ValueError("target: the model has no target_sparsity; say which sparsity to calibrate to")
        texts = calibration_inputs(batches)
        with evaluating(self), self.dial():
            result, gone = self._calibration(texts, wanted)
            if result.refusal is not None and not force:
                raise ValueError(f"calibrate: {result.refusal}. To close them anyway, pass force=True")
            if gone > wanted + TOLERANCE:
                opened = open_between_layers(self.inner_gates, result, lambda: self._calibration(texts, result.target))
                result = replace(opened, before=result.before)
        if result.warning is not None:
            warnings.warn(result.warning, stacklevel=3)
        if result.threshold != self.gate.threshold:
            self.gate.close_at(result.threshold)
        self.calibration = result
        return result

    def _calibration(self, texts: Sequence[Mapping[str, Any]], wanted: float) -> tuple[Calibration, float]:
        """Where the last gate should close, and the share of tokens that gates before it have removed already."""
        sentences = []
        gone = real = 0
        for inputs in texts:
            self.check_coverage(inputs.get("attention_mask"))
            gates = self.get_encoder()(**inputs).gates
            if gates.log_alpha is None:
                raise ValueError("calibrate: this gate has no log α with a threshold to move, because it is a rule")
            _, mask_BN = self.source_rows(inputs.get("attention_mask"), gates.values)
            always_BN = self._always(inputs.get("input_ids"), mask_BN)
            sentences.append(Sentences(gates.log_alpha, mask_BN, always_BN))
            if len(self.inner_gates):
                gone += int((gates.log_alpha.isneginf() & mask_BN).sum())
                real += int(mask_BN.sum())
        found = calibrate(sentences, wanted, self.gate.threshold, self.config.l0drop.gating)
        return found, gone / real if real else 0.0


def _require_ids(input_ids: Any) -> None:
    if isinstance(input_ids, Mapping):
        raise TypeError("input_ids: expected token ids, got a mapping; unpack it: model.explain(**inputs)")
    if not isinstance(input_ids, Tensor):
        raise TypeError(
            f"input_ids: expected a tensor of token ids [B, N], got {type(input_ids).__name__}; tokenize text first, "
            'model.explain(**tokenizer(texts, return_tensors="pt")), or use l0drop.load(folder).explain(text)'
        )
    if input_ids.dim() != 2:
        raise ValueError(
            f"input_ids: expected shape [B, N], got {list(input_ids.shape)}; for one sentence, pass ids[None]"
        )
