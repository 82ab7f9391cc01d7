"""The L0 term of the objective, and what sets its weight λ: a constant, a ramp, or a controller with a target sparsity.

The schedules are plain Python with a state that can be saved, so a resumed run goes on where it stopped.

Shapes: B sentences, N source positions. Masks are True on real tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from l0drop.core import hard_concrete
from l0drop.core.memory import Gating

Reduction = Literal["mean", "sum"]


def penalty(open_probability_BN: Tensor, mask_BN: Tensor, reduction: Reduction = "mean") -> Tensor:
    """[B], the expected number of open gates of each sentence (Eq. 10), or its mean over the sentence's tokens.

    The paper writes the sum, its authors' code takes the mean; with the mean λ weighs the same for short and for long
    inputs. Positions outside `mask_BN` are left out; a sentence with none inside has penalty 0.
    """
    total_B = open_probability_BN.masked_fill(~mask_BN, 0).sum(1)
    return total_B if reduction == "sum" else total_B / mask_BN.sum(1).clamp_min(1)


class LambdaSchedule:
    """What λ is at each optimizer step: call `step` once per step and use what it returns."""

    value: float
    moving: tuple[str, ...] = ("value",)

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        """Move on by one optimizer step. `sparsity`: share of closed test-time gates in the step's training batch;
        `validation`: the same on held-out text with dropout off, at the steps where it was measured."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What moves, as plain JSON values; targets and gains are settings, not state."""
        return {name: getattr(self, name) for name in self.moving}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.moving):
            raise ValueError(f"{type(self).__name__}: a state with {sorted(self.moving)} expected, got {sorted(state)}")
        vars(self).update(state)


class ConstantLambda(LambdaSchedule):
    """λ as given."""

    def __init__(self, value: float) -> None:
        self.value = value

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        return self.value


class RampedLambda(LambdaSchedule):
    """λ rising linearly from 0 at step `start` to its value at step `end`: training from scratch."""

    moving = ("value", "steps")

    def __init__(self, value: float, start: int, end: int) -> None:
        if not 0 <= start < end:
            raise ValueError(f"λ ramp: 0 <= start < end expected, got start {start}, end {end}")
        self.final, self.start, self.end = value, start, end
        self.steps = 0
        self.value = 0.0

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        self.steps += 1
        self.value = self.final * min(max(0, self.steps - self.start) / (self.end - self.start), 1.0)
        return self.value


class SteeredLambda(LambdaSchedule):
    """λ moved by a PI controller until the sparsity is the target.

    Why PI: a Lagrange multiplier (the integral term alone) answers to the accumulated error only. Gates follow λ with
    a lag, so by the time the error is gone λ is too large and the sparsity swings around the target. The proportional
    term answers to the error's change and cancels that lag. It is strong, because what closes too much is slow to
    open again: a closed gate stays closed at a fraction of the λ that closed it.

    Velocity form: each step adds  max(λ, `scale`) · (kp · change of the error + ki · error)  to λ and clips it to
    [0, max_lambda]. What is clipped is the only state that accumulates, so nothing winds up while λ rests at a bound.
    Steps in proportion to λ approach targets that need λ = 0.2 and λ = 20 at a like pace.

    The error is taken against a setpoint that rises linearly over `ramp` steps, from 0 to `margin` above the target.
    About a third of the training is a good time for that: gates close one kind of word after the other, and the model
    can follow. In `wait` steps before that λ is 0: a model that has not learnt to read yet would close every gate, for
    good. What is measured is a moving average over training batches, corrected by its difference to the last
    validation measurement.

    The margin leaves the calibration at the end gates to open, which is harmless. Where it has to close gates that
    training has left wide open, the model has never seen them closed, and even a hundredth of them can be too many.

    ki is for gates that close within hundreds of steps. Where they close within tens, at a high learning rate, more of
    it brings the sparsity to its setpoint sooner, and leaves the model more time to follow.
    """

    moving = ("value", "steps", "average", "offset", "last_error")

    def __init__(
        self,
        target: float,
        *,
        start: float = 0.3,
        kp: float = 8.0,
        ki: float = 0.05,
        smoothing: float = 0.9,
        wait: int = 0,
        ramp: int = 300,
        margin: float = 0.01,
        scale: float = 0.2,
        max_lambda: float = 50.0,
    ) -> None:
        if not 0 < target < 1:
            raise ValueError(f"target_sparsity: expected a share in (0, 1), got {target}")
        self.target, self.kp, self.ki, self.smoothing = target, kp, ki, smoothing
        self.wait, self.ramp, self.margin, self.scale, self.max_lambda = wait, ramp, margin, scale, max_lambda
        self.start = start
        self.value = 0.0 if wait else start
        self.steps = 0
        self.average: float | None = None
        self.offset = 0.0
        self.last_error: float | None = None

    @property
    def setpoint(self) -> float:
        """Where the sparsity should be at the present step."""
        share = min(1.0, max(0, self.steps - self.wait) / self.ramp) if self.ramp else 1.0
        return share * (self.target + min(self.margin, (1 - self.target) / 2))

    @property
    def measured(self) -> float | None:
        """The best present estimate of the sparsity on held-out text."""
        return None if self.average is None else self.average + self.offset

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        self.steps += 1
        if sparsity is not None:
            fresh = self.average is None
            self.average = (
                sparsity if fresh else self.smoothing * float(self.average or 0) + (1 - self.smoothing) * sparsity
            )
        if validation is not None:
            if self.average is None:
                self.average = validation
            self.offset = validation - self.average
        if self.measured is None or self.steps < self.wait:
            return self.value
        if self.steps == self.wait:
            self.value = self.start
        error = self.setpoint - self.measured
        change = 0.0 if self.last_error is None else error - self.last_error
        self.last_error = error
        moved = self.value + max(self.value, self.scale) * (self.kp * change + self.ki * error)
        self.value = min(max(moved, 0.0), self.max_lambda)
        return self.value


class Sentences(NamedTuple):
    """What the calibration needs of one batch of held-out text: log α [B, N], real tokens, tokens always kept."""

    log_alpha: Tensor
    mask: Tensor
    always: Tensor | None = None


@dataclass(frozen=True)
class Calibration:
    """The outcome: where gates close now, and the sparsity on the text it was found on, as trained and with it.

    inner_moved: how far the thresholds of gates between layers were moved as well.
    """

    threshold: float
    target: float
    before: float
    after: float
    inner_moved: float = 0.0

    @property
    def met(self) -> bool:
        return abs(self.after - self.target) <= TOLERANCE


TOLERANCE = 0.005
"""How near to the target is near enough: half a point."""


def calibrate(batches: Iterable[Sentences], target: float, threshold: float, gating: Gating) -> Calibration:
    """The threshold of log α, at and below which gates are closed, that brings the sparsity nearest to `target`.

    The present one stays where the sparsity is within half a point already. Moving it keeps the order of log α: it
    closes those that were nearest to being closed, or opens those that were nearest to being open, and touches no
    other. (Shifting log α instead moves every gate. Trained gates are nearly all exactly 0 or 1, with a wide gap
    between: closing a hundredth more of them by a shift half closes all the others.)

    Counted as in decoding: tokens always kept are never closed; with gatings that keep one row of a sentence whose
    gates are all closed, that row is never closed either. Where tokens share one log α the share moves in jumps, and
    `Calibration.met` tells if it jumped over the target.
    """
    closable, real = [], 0
    for log_alpha_BN, mask_BN, always_BN in batches:
        may_close_BN = mask_BN.clone()
        if gating != "zero":
            best_B1 = log_alpha_BN.masked_fill(~mask_BN, -torch.inf).argmax(1, keepdim=True)
            may_close_BN.scatter_(1, best_B1, False)
        if always_BN is not None:
            # a sentence with a token that is always kept never needs a row forced open
            has_always_B1 = (always_BN & mask_BN).any(1, keepdim=True)
            may_close_BN = torch.where(has_always_B1, mask_BN, may_close_BN) & ~always_BN
        closable.append(hard_concrete.wide(log_alpha_BN)[may_close_BN].double().cpu())
        real += int(mask_BN.sum())
    if not real:
        raise ValueError("calibrate: no real token in the validation text")
    log_alpha_N = torch.cat(closable).sort().values

    def sparsity(at: Tensor) -> Tensor:
        return torch.searchsorted(log_alpha_N, at, right=True).double() / real

    before = float(sparsity(torch.tensor(threshold, dtype=torch.float64)))
    finite = log_alpha_N[log_alpha_N.isfinite()].unique()
    if abs(before - target) <= TOLERANCE or not len(finite):
        return Calibration(threshold, target, before, before)
    # candidates lie half way between neighbours, where rounding cannot flip a token
    candidates = torch.cat([finite[:1] - 1, (finite[1:] + finite[:-1]) / 2, finite[-1:] + 1])
    distance = (sparsity(candidates) - target).abs()
    nearest = candidates[distance == distance.min()]  # of two that are as near, the one that moves less
    chosen = nearest[(nearest - threshold).abs().argmin()]
    if float(distance.min()) >= abs(before - target):
        return Calibration(threshold, target, before, before)
    return Calibration(float(chosen), target, before, float(sparsity(chosen)))
