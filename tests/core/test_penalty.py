"""The penalty against a loop; λ schedules; the controller on simulated plants; the calibration."""

import random
import re
from collections import deque

import pytest
import torch

from l0drop.core import hard_concrete
from l0drop.core.gates import Gates, LearnedGate
from l0drop.core.memory import keep_one
from l0drop.core.penalty import (
    Calibration,
    ConstantLambda,
    LambdaSchedule,
    RampedLambda,
    Sentences,
    SteeredLambda,
    calibrate,
    penalised,
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
    """Sparsity as a saturating function of λ, with lag, delay and noise."""

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
    assert controller.setpoint == pytest.approx(target + controller.margin)
    assert max(abs(s - controller.setpoint) for s in history[-1000:]) < 0.02


class StickyPlant:
    """Kinds of words whose gates close together: each starts to close at its own λ, counts as closed from halfway on,
    and stays closed down to a tenth of that λ."""

    def __init__(self, seed: int, kinds: int = 60, speed: float = 0.015) -> None:
        self.random = random.Random(seed)
        self.closes_at = [0.4 + 2.4 * self.random.random() for _ in range(kinds)]
        self.way = [1.0] * kinds
        self.speed = speed

    def step(self, lambda_: float) -> float:
        for kind, (way, closes_at) in enumerate(zip(self.way, self.closes_at, strict=True)):
            opens = lambda_ < 0.1 * closes_at or (lambda_ <= closes_at and way > 0)
            self.way[kind] = min(1.0, max(-1.0, way + (self.speed if opens else -self.speed)))
        return min(1.0, max(0.0, self.sparsity + self.random.gauss(0, 0.02)))

    @property
    def sparsity(self) -> float:
        return sum(way < 0 for way in self.way) / len(self.way)


@pytest.mark.parametrize("target", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_controller_hardly_overshoots_when_gates_stay_closed(target: float, seed: int) -> None:
    plant, controller = StickyPlant(seed), SteeredLambda(target)
    history = []
    for _ in range(1000):
        controller.step(plant.step(controller.value))
        history.append(plant.sparsity)
    assert max(history) < controller.setpoint + 0.08
    assert history[-1] == pytest.approx(controller.setpoint, abs=2.5 / len(plant.way)), "a kind closes as a whole"


def test_controller_waits_before_it_raises_lambda() -> None:
    controller = SteeredLambda(0.5, wait=20, ramp=10)
    assert controller.value == 0
    assert [controller.step(0.1) for _ in range(19)] == [0.0] * 19
    assert controller.setpoint == 0
    assert controller.step(0.0) > 0
    for _ in range(5):
        controller.step(0.0)
    assert controller.setpoint == pytest.approx(0.5 * (0.5 + controller.margin))


def test_controller_corrects_training_batches_by_validation() -> None:
    """Dropout makes training batches look denser than held-out text, where the target must be met."""
    plant, controller = Plant(0.5, 2, 60, 5, noise=0.02, seed=1), SteeredLambda(0.5)
    for step in range(2500):
        seen = plant.step(controller.value)
        controller.step(max(0.0, seen - 0.07), validation=plant.sparsity if step % 100 == 99 else None)
    assert plant.sparsity == pytest.approx(controller.setpoint, abs=0.02)


def test_controller_does_not_wind_up_while_lambda_is_at_its_bound() -> None:
    controller = SteeredLambda(0.5, ramp=0, max_lambda=5.0)
    for _ in range(5000):
        controller.step(0.0)
    assert controller.value == 5.0
    steps_down = 0
    while controller.value > 1.0:
        controller.step(0.9)
        steps_down += 1
    assert steps_down < 200, "5,000 steps at the bound must not wind up"


@pytest.mark.parametrize(
    "make", [lambda: ConstantLambda(0.3), lambda: RampedLambda(0.2, 3, 30), lambda: SteeredLambda(0.4, wait=9)]
)
def test_a_restored_schedule_continues_as_if_uninterrupted(make) -> None:  # type: ignore[no-untyped-def]
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
    with pytest.raises(ValueError, match="expected a state with"):
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


def sparsity_when_decoding(batches: list[Sentences], threshold: float, gating: str) -> float:
    """The sparsity counted gate by gate, as a model does."""
    gate = LearnedGate(1)
    gate.close_at(threshold)
    closed = real = 0
    for log_alpha, mask, always in batches:
        values = gate.at(log_alpha) * mask
        if always is not None:
            values = values.masked_fill(always, 1)
        values = keep_one(Gates(values, None, log_alpha), mask, gating).values  # type: ignore[arg-type]
        closed += int(((values == 0) & mask).sum())
        real += int(mask.sum())
    return closed / real


AS_TRAINED = -hard_concrete.threshold(0.1)


@pytest.mark.parametrize("gating", ["zero", "mask", "weight", "mean"])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("target", [0.1, 0.5, 0.8])
def test_calibration_finds_the_threshold_nearest_to_the_target(gating: str, always: bool, target: float) -> None:
    batches = held_out(11, always)
    result = calibrate(batches, target, AS_TRAINED, gating)  # type: ignore[arg-type]
    assert result.met
    assert result.after == pytest.approx(sparsity_when_decoding(batches, result.threshold, gating), abs=1e-12)
    assert result.before == pytest.approx(sparsity_when_decoding(batches, AS_TRAINED, gating), abs=1e-12)
    tried = [sparsity_when_decoding(batches, t, gating) for t in torch.linspace(-9, 12, 400).tolist()]
    assert abs(result.after - target) <= min(abs(share - target) for share in tried)


def test_calibration_keeps_a_good_threshold_and_reports_a_missed_target() -> None:
    batches = held_out(2)
    right = sparsity_when_decoding(batches, AS_TRAINED, "zero")
    assert calibrate(batches, right + 0.004, AS_TRAINED, "zero").threshold == AS_TRAINED
    mask = torch.ones(10, 10, dtype=torch.bool)
    two_levels = torch.cat([torch.full((10, 3), -1.0), torch.full((10, 7), 5.0)], 1)
    result = calibrate([Sentences(two_levels, mask)], 0.5, AS_TRAINED, "zero")
    assert not result.met
    assert result.after == pytest.approx(0.3), "0.3 and 1.0 are possible; 0.3 is nearer"
    gone = torch.full((2, 4), -torch.inf)
    assert calibrate([Sentences(gone, mask[:2, :4])], 0.5, AS_TRAINED, "zero").after == 1.0
    with pytest.raises(ValueError, match="no real token"):
        calibrate([], 0.5, AS_TRAINED, "zero")


@pytest.mark.parametrize(
    ("before", "after", "refused", "warning"),
    [
        (
            0.0,
            0.4,
            True,
            r"closed 40.0 points of encodings that training had left open, from 0.0% to 40.0% \(target 40",
        ),
        (0.349, 0.4, True, "closed 5.1 points"),
        (0.351, 0.4, False, "closed 4.9 points"),
        (0.388, 0.4, False, "closed 1.2 points"),
        (0.392, 0.4, False, None),
        (0.0, 0.0, False, "the sparsity is 0.0% and not the target of 40.0%.*Train longer"),
        (0.449, 0.4, False, None),
        (
            0.451,
            0.4,
            False,
            "opened 5.1 points of encodings that training had closed.*quality may be below.*train.steer_over",
        ),
    ],
)
def test_calibration_says_when_it_moves_too_many_gates(
    before: float, after: float, refused: bool, warning: str | None
) -> None:
    result = Calibration(0.0, 0.4, before, after)
    if refused:
        assert result.refusal is not None
        points = f"{100 * (after - before):.1f} points"
        for part in (f"{before:.1%}", "the target 40.0%", points, "limit: 5 points", "Train longer"):
            assert part in result.refusal
    else:
        assert result.refusal is None
    if warning is None:
        assert result.warning is None
    else:
        assert re.search(warning, result.warning or "")


def test_a_target_that_is_no_share_is_refused() -> None:
    with pytest.raises(TypeError, match="target_sparsity: expected a number, got '0.4'"):
        SteeredLambda("0.4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="target_sparsity: expected a share between 0 and 1, got 40"):
        SteeredLambda(40)


def test_calibration_changes_no_other_gate() -> None:
    """Trained gates are nearly all 0 or 1 with a gap between: gates that are not closed or opened keep their value."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(20, 30, dtype=torch.bool)
    sides = torch.where(torch.rand(20, 30, generator=generator) < 0.4, -7.0, 5.5)
    log_alpha = sides + torch.randn(20, 30, generator=generator)
    trained = hard_concrete.test_time_gate(log_alpha, 0.1)
    before = float((trained == 0).double().mean())
    for target in (before - 0.05, before + 0.05):
        gate = LearnedGate(1)
        gate.close_at(calibrate([Sentences(log_alpha, mask)], target, AS_TRAINED, "zero").threshold)
        values = gate.at(log_alpha)
        assert float((values == 0).double().mean()) == pytest.approx(target, abs=0.002)
        changed = values != trained
        assert int(changed.sum()) == round(0.05 * 600)
        assert set(values[changed].tolist()) == {1.0 if target < before else 0.0}


def test_schedules_start_at_their_first_value() -> None:
    assert ConstantLambda(0.3).value == ConstantLambda(0.3).step() == 0.3
    ramp = RampedLambda(2.0, 0, 4)
    assert ramp.value == 0.0
    assert [ramp.step() for _ in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert SteeredLambda(0.4).value == 0.3
    assert SteeredLambda(0.4, wait=5).value == 0.0
    assert SteeredLambda(0.4).measured is None


def test_the_controllers_defaults_are_the_documented_ones() -> None:
    steered = SteeredLambda(0.4)
    found = (steered.kp, steered.ki, steered.smoothing, steered.wait, steered.ramp, steered.margin, steered.scale)
    assert (*found, steered.max_lambda) == (8.0, 0.05, 0.9, 0, 300, 0.01, 0.2, 50.0)
    for target in (0, 1, 1.5):
        with pytest.raises(ValueError, match="target_sparsity: expected a share between 0 and 1"):
            SteeredLambda(target)


def test_the_controller_averages_batches_and_follows_validation() -> None:
    steered = SteeredLambda(0.4)
    steered.step(0.2)
    assert steered.measured == pytest.approx(0.2), "the first batch alone"
    steered.step(0.4)
    assert steered.measured == pytest.approx(0.9 * 0.2 + 0.1 * 0.4)
    steered.step(validation=0.5)
    assert steered.measured == pytest.approx(0.5)
    fresh = SteeredLambda(0.4)
    fresh.step(validation=0.3)
    assert (fresh.average, fresh.offset) == (0.3, 0.0)
    still = SteeredLambda(0.4, start=0.7)
    assert [still.step(), still.step()] == [0.7, 0.7], "nothing was measured"


def test_a_state_with_other_names_is_refused_with_both_lists() -> None:
    with pytest.raises(ValueError, match=r"^RampedLambda: expected a state with steps, value, got a, b$"):
        RampedLambda(1.0, 0, 1).load_state_dict({"b": 1, "a": 2})


def test_a_penalty_of_one_token_is_its_probability() -> None:
    found = penalty(torch.tensor([[0.25, 0.5]]), torch.tensor([[True, False]]))
    assert found.tolist() == [0.25]


def levels(*log_alpha: float) -> list[Sentences]:
    """One sentence with these log α."""
    return [Sentences(torch.tensor([log_alpha], dtype=torch.float64), torch.ones(1, len(log_alpha), dtype=torch.bool))]


def test_the_calibrated_threshold_lies_between_neighbours_or_one_beyond_the_ends() -> None:
    batches = levels(1.0, 2.0, 4.0, 8.0)
    expected = {0.0: 0.0, 0.25: 1.5, 0.5: 3.0, 0.75: 6.0, 1.0: 9.0}
    for target, threshold in expected.items():
        start = 9.5 if target == 0 else 0.5
        result = calibrate(batches, target, start, "zero")
        assert result.threshold == threshold
        assert (result.target, result.before, result.after) == (target, 1.0 if target == 0 else 0.0, target)


def test_of_two_thresholds_equally_near_the_smaller_move_is_taken() -> None:
    for start, threshold in ((0.5, 1.5), (9.0, 3.0)):
        assert calibrate(levels(1.0, 2.0, 4.0, 8.0), 0.375, start, "zero").threshold == threshold
    kept = calibrate(levels(1.0, 2.0), 0.25, 0.5, "zero")
    assert (kept.threshold, kept.target, kept.before, kept.after) == (0.5, 0.25, 0.0, 0.0), "0 and 0.5 are equally near"


def test_gates_at_the_threshold_are_closed() -> None:
    assert calibrate(levels(1.0, 2.0, 4.0, 8.0), 0.5, 2.0, "zero").before == 0.5
    exactly = calibrate(levels(0.1, 2.0), 0.5, 0.1, "zero")  # 0.1 is larger in float32
    assert exactly.before == 0.5
    just_below = calibrate(levels(0.1 + 1e-9, 2.0), 0.5, 0.1, "zero")
    assert just_below.before == 0.0


def test_the_penalised_loss_weights_penalties_by_sentences() -> None:
    loss, mean = torch.tensor(2.0), torch.tensor(3.0)
    assert float(penalised(loss, mean, 0.5)) == 3.5
    assert float(penalised(loss, mean, 0.5, sentences=4, of_sentences=8)) == 2.75


def test_a_penalty_is_a_mean_unless_a_sum_is_asked_for() -> None:
    probability, mask = torch.tensor([[0.25, 0.75]]), torch.ones(1, 2, dtype=torch.bool)
    assert penalty(probability, mask).tolist() == [0.5]
    assert penalty(probability, mask, "sum").tolist() == [1.0]
