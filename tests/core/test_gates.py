"""The gate contract: the learned gate, the registry, recorded arguments, refusals."""

import copy
import math

import pytest
import torch

from l0drop.core import hard_concrete
from l0drop.core.gates import GATES, NOISE, Gate, Gates, LearnedGate, register_gate

MASK = torch.arange(6) < torch.tensor([[6], [4], [1]])


def encodings(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(seed))


def test_learned_gate_starts_open_and_exactly_one() -> None:
    gates = LearnedGate(8).eval()(encodings(), MASK)
    assert torch.equal(gates.values, MASK.float())
    assert gates.log_alpha is not None
    torch.testing.assert_close(gates.log_alpha, torch.full((3, 6), math.log(11) + 0.6))


def test_learned_gate_is_a_projection_followed_by_equation_13() -> None:
    gate = LearnedGate(8, start=-0.5).eval()
    torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(1))
    x = encodings()
    gates = gate(x, MASK)
    log_alpha = (x * gate.weight).sum(-1) - 0.5
    torch.testing.assert_close(gates.log_alpha, log_alpha)
    torch.testing.assert_close(gates.values, hard_concrete.test_time_gate(log_alpha, 0.1) * MASK)
    torch.testing.assert_close(gates.open_probability, hard_concrete.open_probability(log_alpha, 2 / 3, 0.1) * MASK)


def test_training_samples_with_the_given_noise() -> None:
    gate = LearnedGate(8, start=0.0).train()
    noise = torch.rand(3, 6, generator=torch.Generator().manual_seed(4))
    gates = gate(encodings(), MASK, hints={NOISE: noise})
    torch.testing.assert_close(gates.values, hard_concrete.sample(torch.zeros(3, 6), noise, 2 / 3, 0.1) * MASK)
    assert not torch.equal(gate(encodings(), MASK).values, gates.values), "without given noise it samples new noise"


def test_a_settled_gate_does_not_sample() -> None:
    gate, x = LearnedGate(6, start=0.0).train(), torch.randn(2, 5, 6)
    torch.nn.init.normal_(gate.weight, std=3)
    mask = torch.ones(2, 5, dtype=torch.bool)
    gate.settled = True
    assert torch.equal(gate(x, mask).values, gate.eval()(x, mask).values)
    gate.train().settled = False
    assert not torch.equal(gate(x, mask).values, gate.eval()(x, mask).values)


def test_scaled_noise_leads_from_the_sample_to_the_test_time_gate() -> None:
    gate = LearnedGate(8, start=0.0).train()
    torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(1))
    noise = torch.rand(3, 6, generator=torch.Generator().manual_seed(4))

    def at(scale: float | None) -> Gates:
        gate.noise_scale = None if scale is None else torch.tensor(scale)
        return gate(encodings(), MASK, hints={NOISE: noise})

    plain, without = at(None), gate.eval()(encodings(), MASK)
    gate.train()
    torch.testing.assert_close(at(1.0).values, plain.values)
    torch.testing.assert_close(at(0.0).values, without.values)
    half = torch.sigmoid((0.5 * torch.logit(noise) + plain.log_alpha) / (1 - 0.5 * (1 - 2 / 3)))
    torch.testing.assert_close(at(0.5).values, (half * 1.2 - 0.1).clamp(0, 1) * MASK)
    assert torch.equal(at(0.5).open_probability, plain.open_probability), "the penalty does not change"
    assert not torch.allclose(at(0.5).values, plain.values)
    assert at(0.5).values.dtype == torch.float32


def test_a_gate_far_outside_the_bound_can_return() -> None:
    """Without the bound, a gate at log α = -30 is never sampled open and has no gradient."""
    gate = LearnedGate(8, start=-30.0).train()
    noise = torch.full((3, 6), 0.99)
    gates = gate(encodings(), MASK, hints={NOISE: noise})
    (gradient,) = torch.autograd.grad(gates.values.sum().neg(), gate.bias)
    assert float(gradient) < 0, "descent raises the bias"
    assert gates.log_alpha.max().item() == pytest.approx(-30.0), "the reported log α is not clipped"


def test_normalized_input_makes_log_alpha_independent_of_scale_and_offset() -> None:
    gate = LearnedGate(8, normalize=True).eval()
    torch.nn.init.normal_(gate.weight)
    x = encodings()
    torch.testing.assert_close(gate(x, MASK).log_alpha, gate(50 * x + 3, MASK).log_alpha, atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gates_are_computed_in_at_least_float32(dtype: torch.dtype) -> None:
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        gates = LearnedGate(8)(encodings().to(dtype), MASK)
    assert gates.values.dtype == gates.log_alpha.dtype == gates.open_probability.dtype == expected


def test_a_moved_threshold_changes_only_the_gates_it_passes() -> None:
    gate, log_alpha = LearnedGate(8).eval(), torch.tensor([-5.0, -3.0, -2.0, 0.0, 2.0, 4.0])
    trained = gate.at(log_alpha)
    assert gate.threshold == pytest.approx(-math.log(11))
    gate.close_at(-1.0)
    torch.testing.assert_close(gate.at(log_alpha), torch.tensor([0, 0, 0, *trained[3:].tolist()]))
    gate.close_at(-4.0)
    torch.testing.assert_close(gate.at(log_alpha), torch.tensor([0, 1, *trained[2:].tolist()]))
    assert gate.closed(Gates(trained, None, log_alpha)).tolist() == [True, False, False, False, False, False]
    assert gate.threshold == pytest.approx(-4.0)
    again = LearnedGate(8)
    again.load_state_dict(gate.state_dict())
    assert again.threshold == gate.threshold
    for ask in (lambda: Gate().threshold, lambda: Gate().close_at(1.0)):
        with pytest.raises(ValueError, match="threshold"):
            ask()


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (Gates(torch.ones(3, 5)), r"Gates.values: expected shape \(3, 6\)"),
        (Gates(MASK.float(), log_alpha=torch.ones(6)), "Gates.log_alpha: expected shape"),
        (Gates(MASK * 1.5), r"Gates.values: must lie in \[0, 1\]"),
        (Gates(MASK * -0.1), r"Gates.values: must lie in \[0, 1\]"),
        (Gates(torch.full((3, 6), torch.nan)), "Gates.values: are NaN; the encodings or the gate's weights"),
        (Gates(torch.ones(3, 6)), "padding must have gate 0"),
    ],
)
def test_wrong_gates_are_refused_by_name(gates: Gates, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.check(MASK)


@register_gate("test-every")
class Every(Gate):
    def __init__(self, step: int = 2, **options: float) -> None:
        super().__init__()
        self.step, self.options = step, options

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates(((mask.cumsum(1) - 1) % self.step == 0) * mask.float())


def test_a_gate_remembers_its_arguments_through_copies() -> None:
    for gate in (Every(3, decay=0.5), copy.deepcopy(Every(3, decay=0.5))):
        assert gate.arguments == {"step": 3, "decay": 0.5}, "defaults and keyword arguments included"
        again = GATES.class_of(GATES.name_of(gate)).build(gate.arguments, width=8, beta=1, epsilon=1, start=None)
        assert isinstance(again, Every)
        assert (again.step, again.options) == (3, {"decay": 0.5})
    with pytest.raises(TypeError, match="positional"):
        Every(1, 2)  # type: ignore[call-arg]


def test_the_registry_lists_its_names_and_keeps_them_unique() -> None:
    with pytest.raises(ValueError, match=r"no gate is registered as 'absent'.*learned.*import the module"):
        GATES.class_of("absent")

    class Unregistered(Gate):
        pass

    with pytest.raises(ValueError, match="Unregistered is not registered"):
        GATES.name_of(Unregistered())
    with pytest.raises(ValueError, match="the name 'learned' is taken"):
        register_gate("learned")(Unregistered)
    assert register_gate("test-every")(Every) is Every, "a module may be imported twice"


def test_arguments_that_a_gate_does_not_take_are_named():
    with pytest.raises(ValueError, match="gate_args: LearnedGate.*speed"):
        LearnedGate.build({"speed": 3}, width=4)

    class Plain(Gate):
        pass

    with pytest.raises(ValueError, match="gate_args: Plain.*speed"):
        Plain.build({"speed": 3}, width=4)


class Half(Gate):
    """Closes every second position."""

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates((torch.arange(mask.shape[1]) % 2 == 0) * mask.float())


def test_what_a_gate_does_not_define_is_refused_with_its_name() -> None:
    mask = torch.ones(1, 4, dtype=torch.bool)
    gates = Half()(torch.zeros(1, 4, 2), mask)
    assert Half().closed(gates).tolist() == [[False, True, False, True]]
    with pytest.raises(ValueError, match="^shift: Half does not define its gate at another log α"):
        Half().at(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="^Half has no threshold to set"):
        Half().close_at(0.0)
    with pytest.raises(NotImplementedError, match="^Gate must override forward and return Gates$"):
        Gate()(torch.zeros(1, 4, 2), mask)


def test_each_position_is_normalized_alone() -> None:
    gate = LearnedGate(width=8, normalize=True)
    with torch.no_grad():
        gate.weight.normal_()
    encodings = torch.randn(2, 5, 8)
    expected = torch.nn.functional.layer_norm(encodings, (8,)) @ gate.weight + gate.bias
    torch.testing.assert_close(gate.log_alpha(encodings), expected)


def test_a_gate_has_float32_weights_whatever_the_default_dtype_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        gate = LearnedGate(width=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {tensor.dtype for tensor in gate.state_dict().values()} == {torch.float32}
    assert gate.log_alpha(torch.zeros(1, 2, 4, dtype=torch.float64)).dtype == torch.float64


def test_a_registered_gate_is_found_and_built_with_the_models_width() -> None:
    class Wide(Gate):
        def __init__(self, width: int, epsilon: float) -> None:
            super().__init__()

    register_gate("test-wide")(Wide)
    assert GATES.class_of("test-wide") is Wide
    gate = Wide.build({}, width=7, epsilon=0.2, beta=0.5)
    assert gate.arguments == {"width": 7, "epsilon": 0.2}


def test_the_field_of_wrong_gates_is_named() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    values = torch.ones(1, 2)
    with pytest.raises(ValueError, match=r"^Gates\.open_probability: must lie in \[0, 1\]"):
        Gates(values, 2 * values).check(mask)
    with pytest.raises(ValueError, match=r"^Gates\.values: padding must have gate 0"):
        Gates(values).check(torch.tensor([[True, False]]))
