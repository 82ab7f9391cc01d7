"""The L0 term against a loop; the λ schedules; the controller on a simulated plant; the calibration."""

import random
from collections import deque

import pytest
import torch

from l0drop.core import hard_concrete
from l0drop.core.gates import Gates
from l0drop.core.memory import keep_one
from l0drop.core.penalty import (
    TOLERANCE,
    ConstantLambda,
    LambdaSchedule,
    RampedLambda,
    Sentences,
    SteeredLambda,
    calibrate,
    penalty,
)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_penalty_against_a_loop(reduction: str) -> None:
    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(4, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 7, generator=generator) < 0.6
    mask[3] = False
    for row, value in enumerate(penalty(probability, mask, reduction).tolist()):
        real = [float(p) for p, m in zip(probability[row], mask[row], strict=True) if m]
        expected = sum(real) / (len(real) if reduction == "mean" and real else 1)
        assert value == pytest.approx(expected)


def test_ramp_is_linear_between_its_ends() -> None:
    ramp = RampedLambda(0.2, start=10, end=30)
    values = [ramp.step() for _ in range(50)]
    assert values[9] == 0.0
    assert values[19] == pytest.approx(0.1)
    assert values[29:] == [0.2] * 21
    with pytest.raises(ValueError, match="0 <= start < end"):
        RampedLambda(0.2, 5, 5)


class Plant:
    """Sparsity as a saturating function of λ, reached with a lag, seen late and through noise."""

    def __init__(self, knee: float, steepness: float, lag: float, delay: int, noise: float, seed: int) -> None:
        self.knee, self.steepness, self.lag, self.noise = knee, steepness, lag, noise
        self.pipe = deque([0.0] * delay)
        self.random = random.Random(seed)
        self.sparsity = 0.0

    def step(self, lambda_: float) -> float:
        self.pipe.append(lambda_)
        late = self.pipe.popleft() ** self.steepness
        self.sparsity += (0.95 * late / (late + self.knee**self.steepness) - self.sparsity) / self.lag
        return min(1.0, max(0.0, self.sparsity + self.random.gauss(0, self.noise)))


@pytest.mark.parametrize("target", [0.2, 0.5, 0.8])
@pytest.mark.parametrize(
    ("knee", "steepness", "lag", "delay"), [(0.3, 1, 40, 5), (0.5, 2, 80, 10), (1.0, 4, 200, 20), (4.0, 2, 80, 10)]
)
def test_controller_reaches_and_holds_the_target(
    target: float, knee: float, steepness: float, lag: float, delay: int
) -> None:
    plant, controller = Plant(knee, steepness, lag, delay, noise=0.02, seed=7), SteeredLambda(target)
    history = []
    for _ in range(2500):
        controller.step(plant.step(controller.value))
        history.append(plant.sparsity)
    assert max(abs(s - target) for s in history[-1000:]) < 0.02


def test_controller_corrects_training_batches_by_validation() -> None:
    """Dropout makes training batches look denser than held-out text: the target must be met on the latter."""
    plant, controller = Plant(0.5, 2, 60, 5, noise=0.02, seed=1), SteeredLambda(0.5)
    for step in range(2500):
        seen = plant.step(controller.value)
        controller.step(max(0.0, seen - 0.07), validation=plant.sparsity if step % 100 == 99 else None)
    assert plant.sparsity == pytest.approx(0.5, abs=0.02)


def test_controller_does_not_wind_up_while_lambda_is_at_its_bound() -> None:
    controller = SteeredLambda(0.5, ramp=0, max_lambda=5.0)
    for _ in range(5000):
        controller.step(0.0)
    assert controller.value == 5.0
    steps_down = 0
    while controller.value > 1.0:
        controller.step(0.9)
        steps_down += 1
    assert steps_down < 200, "5,000 steps at the bound must not have to be unwound"


@pytest.mark.parametrize(
    "make", [lambda: ConstantLambda(0.3), lambda: RampedLambda(0.2, 3, 30), lambda: SteeredLambda(0.4)]
)
def test_a_saved_schedule_goes_on_as_if_uninterrupted(make) -> None:  # type: ignore[no-untyped-def]
    seen = [random.Random(3).random() for _ in range(60)]

    def run(schedule: LambdaSchedule, part: list[float]) -> list[float]:
        return [schedule.step(s, validation=0.3 if i % 7 == 0 else None) for i, s in enumerate(part)]

    whole = make()
    expected = run(whole, seen[:28]) + run(whole, seen[28:])
    first = make()
    begun = run(first, seen[:28])
    second = make()
    second.load_state_dict(first.state_dict())
    assert begun + run(second, seen[28:]) == expected
    with pytest.raises(ValueError, match="a state with"):
        make().load_state_dict({"unknown": 1})


def held_out(seed: int, always: bool = False) -> list[Sentences]:
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(6):
        mask = torch.arange(30) < torch.randint(1, 31, (16, 1), generator=generator)
        log_alpha = 2 + 3 * torch.randn(16, 30, generator=generator)
        kept = (torch.rand(16, 30, generator=generator) < 0.1) & mask if always else None
        batches.append(Sentences(log_alpha, mask, kept))
    return batches


def sparsity_when_decoding(batches: list[Sentences], shift: float, gating: str) -> float:
    closed = real = 0
    for log_alpha, mask, always in batches:
        values = hard_concrete.test_time_gate(log_alpha + shift, 0.1) * mask
        if always is not None:
            values = values.masked_fill(always, 1)
        values = keep_one(Gates(values, None, log_alpha), mask, gating).values  # type: ignore[arg-type]
        closed += int(((values == 0) & mask).sum())
        real += int(mask.sum())
    return closed / real


@pytest.mark.parametrize("gating", ["zero", "mask", "weight"])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("target", [0.1, 0.5, 0.8])
def test_calibration_meets_the_target_by_the_smallest_shift(gating: str, always: bool, target: float) -> None:
    batches = held_out(11, always)
    result = calibrate(batches, target, 0.1, gating)  # type: ignore[arg-type]
    assert result.met
    assert result.after == pytest.approx(sparsity_when_decoding(batches, result.shift, gating), abs=1e-12)
    assert result.before == pytest.approx(sparsity_when_decoding(batches, 0.0, gating), abs=1e-12)
    assert abs(sparsity_when_decoding(batches, 0.97 * result.shift, gating) - target) > TOLERANCE, (
        "a smaller one would do"
    )


def test_calibration_leaves_what_is_right_and_tells_what_cannot_be_met() -> None:
    batches = held_out(2)
    right = sparsity_when_decoding(batches, 0.0, "zero")
    assert calibrate(batches, right + 0.004, 0.1, "zero").shift == 0.0
    mask = torch.ones(10, 10, dtype=torch.bool)
    two_levels = torch.cat([torch.full((10, 3), -1.0), torch.full((10, 7), 5.0)], 1)
    result = calibrate([Sentences(two_levels, mask)], 0.5, 0.1, "zero")
    assert not result.met
    assert result.after == pytest.approx(0.3), "0.3 and 1.0 can be had; 0.3 is nearer"
    gone = torch.full((2, 4), -torch.inf)
    assert calibrate([Sentences(gone, mask[:2, :4])], 0.5, 0.1, "zero").after == 1.0
    with pytest.raises(ValueError, match="no real token"):
        calibrate([], 0.5, 0.1, "zero")
