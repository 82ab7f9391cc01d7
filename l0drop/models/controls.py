"""What users turn and read on a sparsified model: the dial, λ, optimizer groups, explanations, the calibration."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from l0drop.core.dial import Dial
from l0drop.core.gates import Gate
from l0drop.core.memory import check_mask
from l0drop.core.penalty import TOLERANCE, Calibration, LambdaSchedule, Sentences, SteeredLambda, calibrate
from l0drop.models.outputs import Explanation


class Controls(nn.Module):
    """The part of `L0DropModel` that people with their own loop call."""

    config: Any
    gate: Gate
    inner_gates: nn.ModuleList
    schedule: LambdaSchedule
    get_encoder: Any
    _dial: Dial
    _steps_unsteered: int = 0
    _seen: tuple[Tensor, Tensor] | None  # dropped and real tokens in training since λ was last moved

    @property
    def lambda_(self) -> float:
        """The live weight of the penalty."""
        return self.schedule.value

    @lambda_.setter
    def lambda_(self, value: float) -> None:
        self.schedule.value = value

    def _always(self, input_ids: Tensor | None, mask_BN: Tensor) -> Tensor | None:
        """[B, N], True on real tokens that are kept whatever the gate says; None where there are none."""
        always_keep = self.config.l0drop.always_keep
        if not always_keep:
            return None
        if input_ids is None:
            raise ValueError("always_keep: token ids are needed to know which tokens to keep; pass input_ids")
        return torch.isin(input_ids, torch.tensor(always_keep, device=input_ids.device)) & mask_BN

    @contextmanager
    def dial(
        self,
        keep: float | Tensor | None = None,
        max_memory: int | None = None,
        shift: float | None = None,
        dense: bool = False,
    ) -> Iterator[None]:
        """Keep more or fewer encodings than the model chose by itself, for the calls inside; see `Dial`.

        A dial inside another replaces it. In training, half of the sentences have the rows that `keep` takes; in the
        others gates are drawn around that border, so that the order of rows is learnt. `shift` is for decoding alone.
        """
        self._require_enabled()
        if self.training and shift is not None:
            raise ValueError("shift: moves the test-time gate; in training, use keep")
        before, self._dial = self._dial, Dial(keep, max_memory, shift, dense)
        try:
            yield
        finally:
            self._dial = before

    def steer(self, sparsity: float | Tensor | None = None, *, validation: float | None = None) -> float:
        """Move λ, once per optimizer step, by what was measured: towards the target sparsity, or along its schedule.

        `sparsity` is that of the step's training batches; left out, it is what `forward` has seen since the last call,
        in all processes. `validation` is the sparsity on held-out text, at the steps where it was measured. What is
        passed must be the same in all processes, or their λ drift apart.
        """
        if sparsity is None and self._seen is not None:
            counts = torch.stack([torch.as_tensor(n, dtype=torch.float64) for n in self._seen])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(counts)
            sparsity = counts[0] / counts[1]
        self._seen = None
        return self.schedule.step(None if sparsity is None else float(sparsity), validation)

    def _warn_if_never_steered(self) -> None:
        """A target that nothing steers to is a mistake that would show only at the end."""
        if torch.compiler.is_compiling() or not isinstance(self.schedule, SteeredLambda):
            return
        self._steps_unsteered = 0 if self.schedule.steps else self._steps_unsteered + 1
        if self._steps_unsteered == 200:
            warnings.warn(
                "target_sparsity is set, but λ has not moved in 200 training steps: call model.steer() after every "
                "optimizer step, or give the Trainer a SteerCallback (l0drop.training.callbacks)",
                stacklevel=3,
            )

    def _require_enabled(self) -> None:
        if not self.config.l0drop.enabled:
            raise ValueError("enabled: the model runs ungated; set model.config.l0drop.enabled = True first")

    def parameter_groups(self, lr: float, gate_scale: float = 30) -> list[dict[str, Any]]:
        """Optimizer groups: the gates learn `gate_scale` times faster (an open gate's L0 gradient is tiny)."""
        gates = [p for module in (self.gate, self.inner_gates) for p in module.parameters() if p.requires_grad]
        own = {id(p) for p in gates}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in own]
        return [{"params": rest, "lr": lr}, {"params": gates, "lr": lr * gate_scale, "weight_decay": 0.0}]

    @torch.no_grad()
    def explain(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> list[Explanation]:
        """Test-time gates, log α and kept positions of each sentence, counted in its real tokens."""
        self._require_enabled()
        with evaluating(self):
            output = self.get_encoder()(input_ids=input_ids, attention_mask=attention_mask, hints=hints, **kwargs)
        gates, mask_BN = output.gates, real_tokens(attention_mask, input_ids)
        explanations = []
        for row, real in enumerate(mask_BN):
            values = gates.values[row, real]
            log_alpha = None if gates.log_alpha is None else gates.log_alpha[row, real]
            explanations.append(Explanation(values, log_alpha, (values != 0).nonzero().flatten().tolist()))
        return explanations

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Mapping[str, Any]], target: float | None = None) -> Calibration:
        """Bring the sparsity on held-out text to the target by moving, for good, the log α at which gates close; all
        other gates stay as they are. `batches` hold input_ids, attention_mask and what else the encoder takes.

        Opening what training had closed is harmless. Closing what it had left open is not: the fewer, the better.
        Where gates between layers have removed more rows than the target allows, which the last gate cannot bring
        back, their thresholds move as well, all by as much (`Calibration.inner_moved`).
        """
        wanted = self.config.l0drop.target_sparsity if target is None else target
        if wanted is None:
            raise ValueError("target: the model has no target_sparsity; say which sparsity to calibrate to")
        texts = [{k: v for k, v in b.items() if k not in ("labels", "noise_key", "decoder_input_ids")} for b in batches]
        with evaluating(self), self.dial():
            result, gone = self._calibration(texts, wanted)
            if gone > wanted + TOLERANCE:
                result = replace(self._open_between_layers(texts, result), before=result.before)
        if result.threshold != self.gate.threshold:
            self.gate.close_at(result.threshold)
        return result

    def _calibration(self, texts: Sequence[Mapping[str, Any]], wanted: float) -> tuple[Calibration, float]:
        """Where the last gate should close, given what stands before it, and the share of tokens it never sees."""
        sentences = []
        gone = real = 0
        for inputs in texts:
            gates = self.get_encoder()(**inputs).gates
            if gates.log_alpha is None:
                raise ValueError("calibrate: this gate has no log α that decides what is closed (it is a rule)")
            mask_BN = real_tokens(inputs.get("attention_mask"), gates.values)
            always_BN = self._always(inputs.get("input_ids"), mask_BN)
            sentences.append(Sentences(gates.log_alpha, mask_BN, always_BN))
            if len(self.inner_gates):
                gone += int((gates.log_alpha.isneginf() & mask_BN).sum())
                real += int(mask_BN.sum())
        found = calibrate(sentences, wanted, self.gate.threshold, self.config.l0drop.gating)
        return found, gone / real if real else 0.0

    def _open_between_layers(self, texts: Sequence[Mapping[str, Any]], closed: Calibration) -> Calibration:
        """Lower the thresholds between layers as little as brings the last gate to its target.

        Every row that stays changes what later layers see, so each candidate is tried on the text: steps that double
        until enough is open, then halves between the last two.
        """
        gates = [gate for gate in self.inner_gates if isinstance(gate, Gate)]
        as_trained = [gate.threshold for gate in gates]

        def lowered(by: float) -> tuple[Calibration, bool]:
            for gate, threshold in zip(gates, as_trained, strict=True):
                gate.close_at(threshold - by)
            found, gone = self._calibration(texts, closed.target)
            return replace(found, inner_moved=-by), gone <= closed.target + TOLERANCE

        too_little, by = 0.0, 1.0
        while not lowered(by)[1]:
            too_little, by = by, 2 * by
            if by > _WIDEST:
                lowered(0.0)
                return closed
        for _ in range(_HALVES):
            middle = (too_little + by) / 2
            too_little, by = (too_little, middle) if lowered(middle)[1] else (middle, by)
        return lowered(by)[0]


_WIDEST = 64.0
"""No log α that is finite in practice is further below its threshold."""
_HALVES = 6


def real_tokens(attention_mask: Tensor | None, like_BN: Tensor) -> Tensor:
    """[B, N], True on real tokens."""
    if attention_mask is None:
        return torch.ones(like_BN.shape[:2], dtype=torch.bool, device=like_BN.device)
    if attention_mask.shape != like_BN.shape[:2]:
        raise ValueError(
            f"attention_mask: expected shape {tuple(like_BN.shape[:2])}, one entry per source token, "
            f"got {tuple(attention_mask.shape)}"
        )
    mask_BN = attention_mask.bool()
    check_mask(mask_BN)
    return mask_BN


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode for the calls inside, whatever the mode of each module outside."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
