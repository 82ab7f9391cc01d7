"""The L0 penalty, schedules for its weight λ (a constant, a ramp, a controller with a target), and the calibration.

Schedules are plain Python objects whose state can be saved, so that a resumed run continues with the same λ.

Shapes: B sentences, N source positions. Masks are True on real tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from l0drop.core import hard_concrete
from l0drop.core.memory import Gating, has_shared_row
from l0drop.core.values import number

Reduction = Literal["mean", "sum"]


def penalty(open_probability_BN: Tensor, mask_BN: Tensor, reduction: Reduction = "mean") -> Tensor:
    """[B], the expected number of open gates of each sentence (Eq. 10), or its mean over the sentence's tokens.

    The paper writes the sum; its authors' code takes the mean. With the mean, λ has the same weight for short and long
    inputs. Positions outside `mask_BN` do not count; a sentence without any has penalty 0.
    """
    total_B = open_probability_BN.masked_fill(~mask_BN, 0).sum(1)
    return total_B if reduction == "sum" else total_B / mask_BN.sum(1).clamp_min(1)


def penalised(
    loss: Tensor,
    penalty: Tensor,
    lambda_: float | Tensor,
    *,
    sentences: int = 1,
    of_sentences: int | Tensor = 1,
) -> Tensor:
    """loss + λ · penalty, where the penalty is the mean over a batch: `sentences` of the `of_sentences` of a step."""
    return loss + lambda_ * penalty * sentences / of_sentences


class LambdaSchedule:
    """λ over the training: call `step` once per optimizer step; it returns the next λ."""

    value: float
    moving: tuple[str, ...] = ("value",)

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        """Advance by one optimizer step.

        sparsity: the share of closed test-time gates in the step's training batch.
        validation: the same on held-out text with dropout off, at steps where it was measured.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The values that change, as plain JSON; targets and gains are settings, not state."""
        return {name: getattr(self, name) for name in self.moving}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.moving):
            raise ValueError(
                f"{type(self).__name__}: expected a state with {', '.join(sorted(self.moving))}, "
                f"got {', '.join(sorted(state))}"
            )
        vars(self).update(state)


class ConstantLambda(LambdaSchedule):
    """A fixed λ."""

    def __init__(self, value: float) -> None:
        self.value = value

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        return self.value


class RampedLambda(LambdaSchedule):
    """λ rises linearly from 0 at step `start` to its value at step `end`; for training from scratch."""

    moving = ("value", "steps")

    def __init__(self, value: float, start: int, end: int) -> None:
        if not 0 <= start < end:
            raise ValueError(f"λ ramp: expected 0 <= start < end, got start {start}, end {end}")
        self.final, self.start, self.end = value, start, end
        self.steps = 0
        self.value = 0.0

    def step(self, sparsity: float | None = None, validation: float | None = None) -> float:
        self.steps += 1
        self.value = self.final * min(max(0, self.steps - self.start) / (self.end - self.start), 1.0)
        return self.value


class SteeredLambda(LambdaSchedule):
    """A PI controller that moves λ until the sparsity is the target.

    Why PI: a Lagrange multiplier (the integral term alone) reacts to the accumulated error only. Gates follow λ with
    a lag, so by the time the error is gone λ is too large, and the sparsity oscillates around the target. The
    proportional term reacts to the change of the error and cancels that lag. It is strong because overshoot is slow to
    undo: a closed gate stays closed at a fraction of the λ that closed it.

    Velocity form: each step adds  max(λ, `scale`) · (kp · change of the error + ki · error)  to λ and clips it to
    [0, max_lambda]. λ is the only state that accumulates, so the integral term cannot wind up while λ is at a bound.
    Steps proportional to λ approach targets that need λ = 0.2 and λ = 20 at a similar pace.

    The error is measured against a setpoint that rises linearly over `ramp` steps, from 0 to `margin` above the target.
    About a third of the training is a good length: gates close one kind of word after the other, and the model can
    adapt. λ is 0 for `wait` steps before that, because a model that has not learned to read yet would close every gate
    for good. The measurement is a moving average over training batches, corrected by its difference to the last
    validation measurement.

    The margin leaves a few gates for the calibration to open, which costs nothing. If it has to close gates that
    training left wide open, the model has never seen them closed, and even one in a hundred can be too many.

    The default `ki` suits gates that close within hundreds of steps. If they close within tens, at a high learning
    rate, a larger one reaches the setpoint sooner and leaves the model more time to adapt.
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
        target = number("target_sparsity", target)
        if not 0 < target < 1:
            raise ValueError(f"target_sparsity: expected a share between 0 and 1, got {target}")
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
        """The sparsity to reach at this step."""
        progress = min(1.0, max(0, self.steps - self.wait) / self.ramp) if self.ramp else 1.0
        return progress * (self.target + min(self.margin, (1 - self.target) / 2))

    @property
    def measured(self) -> float | None:
        """The current estimate of the sparsity on held-out text."""
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
    """One batch of held-out text for the calibration: log α [B, N], real tokens, tokens that are always kept."""

    log_alpha: Tensor
    mask: Tensor
    always: Tensor | None = None


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    threshold: the log α at and below which gates close now.
    target: the sparsity asked for.
    before, after: the sparsity on the held-out text as trained, and with the new threshold.
    inner_moved: by how much the thresholds of gates between layers were moved.
    """

    threshold: float
    target: float
    before: float
    after: float
    inner_moved: float = 0.0

    @property
    def met(self) -> bool:
        """Whether the sparsity is within half a point of the target."""
        return abs(self.after - self.target) <= TOLERANCE

    @property
    def refusal(self) -> str | None:
        """Why these gates should not be closed, if they are too many."""
        closed = self.after - self.before
        if closed <= MOST_CLOSED:
            return None
        return (
            f"the sparsity on this text is {self.before:.1%} and the target {self.target:.1%}. To reach it, "
            f"{100 * closed:.1f} points of encodings that training left open would have to be closed (limit: "
            f"{100 * MOST_CLOSED:.0f} points), and the decoder has not learned to do without them. Train longer, "
            "calling steer() at every step, or choose a lower target"
        )

    @property
    def warning(self) -> str | None:
        """What to know about the gates that were moved, if they are more than a few."""
        closed = self.after - self.before
        moved = f"from {self.before:.1%} to {self.after:.1%} (target {self.target:.1%})"
        if closed > WORTH_A_WARNING:
            return (
                f"the calibration closed {100 * closed:.1f} points of encodings that training had left open, {moved}; "
                "the decoder has not learned to do without them. Check the quality; training longer (train.steps in a "
                "recipe) avoids this"
            )
        if closed < -MOST_CLOSED:
            return (
                f"the calibration opened {-100 * closed:.1f} points of encodings that training had closed, {moved}. "
                "The quality may be below that of a model trained to this target: training went far beyond it. To end "
                "nearer to it, raise train.steer_over in the recipe (in your own loop: the ramp of SteeredLambda)"
            )
        if abs(self.after - self.target) > WORTH_A_WARNING:
            return (
                f"the sparsity is {self.after:.1%} and not the target of {self.target:.1%}: many encodings have the "
                "same log α, so they open or close together. Train longer, calling steer() at every step"
            )
        return None


TOLERANCE = 0.005
"""The calibration is content within half a point of the target."""
MOST_CLOSED = 0.05
"""The calibration refuses to close more than 5 points. On real text, training runs that were long enough ended at most
2.2 points below their target; a run that is further off has not learned to do without these encodings."""
WORTH_A_WARNING = 0.01
"""It warns above 1 point. Steering aims 1 point above the target, so a run that got there has nothing to close."""


def calibrate(batches: Iterable[Sentences], target: float, threshold: float, gating: Gating) -> Calibration:
    """The threshold, the log α at and below which gates close, that brings the sparsity nearest to `target`.

    The threshold stays if the sparsity is within half a point already. Moving it closes the gates that were nearest to
    being closed, or opens those nearest to being open, and changes no other. (Shifting log α would change every gate.
    Trained gates are nearly all exactly 0 or 1, with a wide gap between: a shift that closes one more in a hundred half
    closes all the others.)

    Tokens are counted as in decoding: tokens that are always kept never close, nor does the one row that some gatings
    keep of a sentence whose gates are all closed. Tokens with equal log α close together, so the sparsity may jump over
    the target; `Calibration.met` says whether it did.
    """
    closable, real = [], 0
    for log_alpha_BN, mask_BN, always_BN in batches:
        may_close_BN = mask_BN.clone()
        if not has_shared_row(gating):
            best_B1 = log_alpha_BN.masked_fill(~mask_BN, -torch.inf).argmax(1, keepdim=True)
            may_close_BN.scatter_(1, best_B1, False)
        if always_BN is not None:
            # a sentence with a token that is always kept needs no other row kept open
            has_always_B1 = (always_BN & mask_BN).any(1, keepdim=True)
            may_close_BN = torch.where(has_always_B1, mask_BN, may_close_BN) & ~always_BN
        closable.append(hard_concrete.wide(log_alpha_BN)[may_close_BN].double().cpu())
        real += int(mask_BN.sum())
    if not real:
        raise ValueError("calibrate: the held-out text has no real token")
    log_alpha_N = torch.cat(closable).sort().values

    def sparsity(at: Tensor) -> Tensor:
        return torch.searchsorted(log_alpha_N, at, right=True).double() / real

    before = float(sparsity(torch.tensor(threshold, dtype=torch.float64)))
    finite = log_alpha_N[log_alpha_N.isfinite()].unique()
    if abs(before - target) <= TOLERANCE or not len(finite):
        return Calibration(threshold, target, before, before)
    # candidates lie halfway between neighbours, where rounding cannot flip a token
    candidates = torch.cat([finite[:1] - 1, (finite[1:] + finite[:-1]) / 2, finite[-1:] + 1])
    distance = (sparsity(candidates) - target).abs()
    nearest = candidates[distance == distance.min()]  # among equally near ones, take the smallest move
    chosen = nearest[(nearest - threshold).abs().argmin()]
    if float(distance.min()) >= abs(before - target):
        return Calibration(threshold, target, before, before)
    return Calibration(float(chosen), target, before, float(sparsity(chosen)))
