"""The distribution: closed forms against samples, exact thresholds, gradients, extreme values, keyed noise."""

import math

import pytest
import torch

from l0drop.core import hard_concrete as hc

PARAMETERS = [(0.0, 2 / 3, 0.1), (1.5, 2 / 3, 0.1), (-2.0, 0.5, 0.1), (-1.0, 1.0, 0.3), (0.7, 2 / 3, 0.02)]


def closed_probability(log_alpha: torch.Tensor, beta: float, epsilon: float) -> torch.Tensor:
    """P(gate = 0) by integrating the density: the logistic distribution at the value that gives 0."""
    return torch.sigmoid(beta * math.log(epsilon / (1 + epsilon)) - log_alpha)


@pytest.mark.parametrize(("log_alpha", "beta", "epsilon"), PARAMETERS)
def test_probability_of_closed_matches_a_million_samples(log_alpha: float, beta: float, epsilon: float) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 1_000_000
    uniforms = torch.rand(n, generator=generator, dtype=torch.float64)
    gates = hc.sample(torch.full((n,), log_alpha, dtype=torch.float64), uniforms, beta, epsilon)
    closed = float(closed_probability(torch.tensor(log_alpha, dtype=torch.float64), beta, epsilon))
    margin = 4.5 * math.sqrt(closed * (1 - closed) / n)  # exceeded by chance once in 150,000
    assert float((gates == 0).double().mean()) == pytest.approx(closed, abs=margin)
    fully_open = float(closed_probability(torch.tensor(-log_alpha, dtype=torch.float64), beta, epsilon))
    assert float((gates == 1).double().mean()) == pytest.approx(fully_open, abs=4.5 * math.sqrt(1 / n / 4))
    assert float(gates.min()) >= 0
    assert float(gates.max()) <= 1


def test_open_probability_is_the_complement_and_known_at_zero() -> None:
    log_alpha = torch.linspace(-30, 30, 101, dtype=torch.float64)
    together = hc.open_probability(log_alpha, 2 / 3, 0.1) + closed_probability(log_alpha, 2 / 3, 0.1)
    torch.testing.assert_close(together, torch.ones_like(together))
    assert float(hc.open_probability(torch.tensor(0.0), 2 / 3, 0.1)) == pytest.approx(0.8318, abs=1e-4)
    assert float(hc.test_time_gate(torch.tensor(0.0), 0.1)) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_thresholds_of_the_test_time_gate_are_exact(dtype: torch.dtype, epsilon: float) -> None:
    edge = math.log((1 + epsilon) / epsilon)
    if epsilon == 0.1:
        assert edge == pytest.approx(math.log(11))
    at = torch.tensor([-edge, edge], dtype=dtype)
    assert hc.test_time_gate(at, epsilon).tolist() == [0.0, 1.0]
    inside = torch.nextafter(at, torch.zeros_like(at))
    just_open, _ = hc.test_time_gate(inside, epsilon).tolist()
    assert just_open > 0
    assert hc.closed(at, epsilon).tolist() == [True, False]
    assert hc.closed(inside, epsilon).tolist() == [False, False]
    grid = torch.linspace(-6, 6, 10_001, dtype=dtype)
    by_formula = (torch.sigmoid(grid) * (1 + 2 * epsilon) - epsilon).clamp(0, 1)
    torch.testing.assert_close(hc.test_time_gate(grid, epsilon), by_formula, atol=2e-7, rtol=0)
    assert torch.equal(hc.test_time_gate(grid, epsilon) == 0, hc.closed(grid, epsilon))


def test_gradient_of_the_sampled_gate_matches_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    uniforms = torch.rand(64, generator=generator, dtype=torch.float64)
    log_alpha = (3 * torch.randn(64, generator=generator, dtype=torch.float64)).requires_grad_()
    values = hc.sample(log_alpha, uniforms, 2 / 3, 0.1)
    assert {0.0, 1.0} <= set(values.tolist()), "the case must contain closed and fully open gates"
    assert torch.autograd.gradcheck(lambda a: hc.sample(a, uniforms, 2 / 3, 0.1), log_alpha)
    assert torch.autograd.gradcheck(lambda a: hc.open_probability(a, 2 / 3, 0.1), log_alpha)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extreme_log_alpha_stays_finite_in_value_and_gradient(dtype: torch.dtype) -> None:
    log_alpha = torch.tensor([-1e4, -50.0, 0.0, 50.0, 1e4], dtype=dtype, requires_grad=True)
    uniforms = torch.tensor([0.0, 0.5, 1.0 - 2**-24, 0.0, 0.5])
    for values in (
        hc.sample(log_alpha, uniforms, 2 / 3, 0.1),
        hc.test_time_gate(log_alpha, 0.1),
        hc.open_probability(log_alpha, 2 / 3, 0.1),
    ):
        assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert values.isfinite().all()
        (gradient,) = torch.autograd.grad(values.sum(), log_alpha)
        assert gradient.isfinite().all()


def test_keyed_noise_depends_on_key_and_position_alone() -> None:
    keys = torch.tensor([5, 17, 5, -3])
    positions = torch.arange(40).expand(4, -1)
    noise = hc.keyed_uniforms(keys, positions)
    assert torch.equal(noise[0], noise[2])
    assert torch.equal(hc.keyed_uniforms(keys[1:2], positions[:1, :9]), noise[1:2, :9])
    assert not torch.equal(noise[0], hc.keyed_uniforms(keys, positions, stream=1)[0])
    assert noise.flatten().unique().numel() >= 3 * 40 - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keyed_noise_is_uniform_and_uncorrelated(dtype: torch.dtype) -> None:
    noise = hc.keyed_uniforms(torch.arange(2000), torch.arange(500).expand(2000, -1), dtype=dtype).double()
    assert noise.min() > 0
    assert noise.max() < 1
    counts = torch.histc(noise, bins=100, min=0, max=1)
    chi_square = float(((counts - 10_000) ** 2 / 10_000).sum())
    assert chi_square < 160, "99 degrees of freedom: exceeded by chance once in 10,000"
    for a, b in (
        (noise[:, 1:], noise[:, :-1]),  # neighbouring positions
        (noise[1:], noise[:-1]),  # neighbouring keys
        (noise, hc.keyed_uniforms(torch.arange(2000), torch.arange(500).expand(2000, -1), 1, dtype).double()),
    ):
        correlation = float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])
        assert abs(correlation) < 0.005, "five standard deviations at a million pairs"


def test_bounded_log_alpha_always_has_a_way_back() -> None:
    log_alpha = torch.tensor([-9.0, -9, -1, 0, 1, 9, 9], requires_grad=True)
    bounded = hc.bounded(log_alpha, 4.6)
    torch.testing.assert_close(bounded, torch.tensor([-4.6, -4.6, -1, 0, 1, 4.6, 4.6]))
    gradient = torch.tensor([1.0, -1, 1, -1, 1, 1, -1])  # descent subtracts it
    (passed,) = torch.autograd.grad(bounded, log_alpha, gradient)
    assert passed.tolist() == [0, -1, 1, -1, 1, 1, 0], "outward gradients are stopped, inward ones pass"


def mixed(z: int) -> int:
    """SplitMix64's finalizer on Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 23), (torch.float64, 52)])
def test_keyed_noise_is_splitmix64(dtype: torch.dtype, digits: int) -> None:
    keys, positions, stream = torch.tensor([0, 5, 2**40 + 1, -3]), torch.tensor([[0, 1, 7]] * 4), 2
    found = hc.keyed_uniforms(keys, positions, stream, dtype)
    assert found.dtype == dtype
    for row, key in enumerate(keys.tolist()):
        start = mixed((mixed(key % 2**64) + stream + 1) % 2**64)
        for column, position in enumerate(positions[row].tolist()):
            bits = mixed((start + (position + 1) * 0x9E3779B97F4A7C15) % 2**64)
            assert float(found[row, column]) == ((bits >> (64 - digits)) + 0.5) / 2**digits
    single = hc.keyed_uniform(keys, stream)
    assert torch.equal(single, hc.keyed_uniforms(keys, positions, stream)[:, 0])
    small = hc.keyed_uniforms(keys[:2].int(), positions[:2].int(), stream, dtype)
    assert torch.equal(small, found[:2]), "keys and positions may have any integer type"


def test_noise_at_the_ends_gives_finite_gates_and_gradients() -> None:
    log_alpha = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    for end, expected in ((0.0, 0.0), (1.0, 1.0)):
        gate = hc.sample(log_alpha, torch.full((3,), end), 2 / 3, 0.1)
        assert gate.tolist() == [expected] * 3
        (gradient,) = torch.autograd.grad(gate.sum(), log_alpha)
        assert bool(gradient.isfinite().all())
    wide = hc.sample(log_alpha.double(), torch.full((3,), 0.3), 2 / 3, 0.1)
    narrow = hc.sample(log_alpha, torch.full((3,), 0.3, dtype=torch.float64), 2 / 3, 0.1)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)


def test_no_gradient_is_stopped_at_the_limit_itself() -> None:
    log_alpha = torch.tensor([-2.0, 2.0, -2.1, 2.1, -2.1, 2.1], requires_grad=True)
    given = torch.tensor([1.0, -1.0, 0.5, -0.5, -0.5, 0.5])
    (hc.bounded(log_alpha, 2.0) * given).sum().backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.tolist() == [1.0, -1.0, 0.0, 0.0, -0.5, 0.5]
