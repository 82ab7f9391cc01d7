"""Every gating: short memory = dense memory = definition, for any lengths and gates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0drop.core.gates import Gates
from l0drop.core.memory import GATINGS, Memory, compress, full, keep_one


def attend(memory: Memory, query: Tensor, key: Tensor, value: Tensor, offset: Tensor) -> Tensor:
    """One attention head over the memory that adds its bias: queries [B, T, D], projections with an offset."""
    keys, values = memory.states @ key + offset, memory.states @ value - offset
    scores = query @ keys.transpose(1, 2) / query.shape[-1] ** 0.5 + memory.bias[:, 0]
    return scores.softmax(-1) @ values


Projections = tuple[Tensor, Tensor, Tensor, Tensor]


def by_definition(x: Tensor, gate: Tensor, mask: Tensor, gating: str, projections: Projections) -> Tensor:
    """The definition of each gating, with attention weights instead of biases."""
    query, key, value, offset = projections
    states = x if gating == "weight" else x * gate[..., None]
    if gating == "mean":
        for sentence, (row, real) in enumerate(zip(gate, mask, strict=True)):
            taken = (1 - row[real])[:, None]
            mean = (taken * x[sentence, real]).sum(0) / taken.sum() if taken.sum() > 0 else torch.zeros(x.shape[-1])
            states[sentence, real] += taken * mean
    scores = query @ (states @ key + offset).transpose(1, 2) / query.shape[-1] ** 0.5
    weights = scores.exp() * mask[:, None]
    if gating == "mask":
        weights = weights * (gate != 0)[:, None]
    if gating == "weight":
        weights = weights * gate[:, None]
    return weights / weights.sum(-1, keepdim=True) @ (states @ value - offset)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Gates, Tensor]:
    """Encodings, gates with and without log α, and a mask, padded on either side."""
    sentences, longest, width = draw(st.integers(1, 4)), draw(st.integers(1, 9)), 4
    lengths = [draw(st.integers(1, longest)) for _ in range(sentences)]
    left = draw(st.booleans())
    columns = torch.arange(longest)
    mask = torch.stack([(columns >= longest - n) if left else (columns < n) for n in lengths])
    pattern = st.sampled_from(["open", "closed", "mixed"])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    rows = []
    for _ in range(sentences):
        kind = draw(pattern)
        row = torch.rand(longest, generator=generator, dtype=torch.float64)
        row = torch.where(torch.rand(longest, generator=generator) < 0.4, row.round(), row)
        rows.append({"open": torch.ones_like(row), "closed": torch.zeros_like(row)}.get(kind, row * (row > 0.3)))
    values = torch.stack(rows) * mask
    log_alpha = (
        torch.randn(sentences, longest, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
    )
    x = torch.randn(sentences, longest, width, generator=generator, dtype=torch.float64)
    return x, Gates(values, None, log_alpha), mask


@pytest.mark.parametrize("gating", GATINGS)
@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_short_equals_dense_equals_definition(gating: str, case: tuple[Tensor, Gates, Tensor]) -> None:
    x, gates, mask = case
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(len(x), 3, 4, generator=generator, dtype=torch.float64)
    key, value = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    offset = torch.randn(4, generator=generator, dtype=torch.float64)
    short, dense = compress(x, gates, mask, gating), full(x, gates, mask, gating)
    final = keep_one(gates, mask, gating).values
    expected = by_definition(x, final, mask, gating, (query, key, value, offset))
    for memory in (short, dense):
        torch.testing.assert_close(attend(memory, query, key, value, offset), expected, atol=1e-12, rtol=1e-12)
    kept = final != 0
    assert torch.equal(short.count, mask.sum(1) - kept.sum(1))
    assert torch.equal(dense.count, short.count)
    for row in range(len(x)):
        index = short.index[row]
        assert index[index >= 0].tolist() == kept[row].nonzero().flatten().tolist(), "source order, kept rows only"
        assert torch.equal(short.bias[row, 0, 0, index >= 0] == -torch.inf, torch.zeros(int(kept[row].sum())).bool())
    assert short.states.shape[1] == int(kept.sum(1).max()) + (gating in ("zero", "mean"))


def test_a_memory_without_the_count_is_wrong() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(2, 8, 4), torch.ones(2, 8, dtype=torch.bool)
    gates = Gates((torch.rand(2, 8) < 0.4).float())
    query, key, value, offset = torch.randn(2, 3, 4), torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    short = compress(x, gates, mask, "zero")
    expected = attend(full(x, gates, mask, "zero"), query, key, value, offset)
    torch.testing.assert_close(attend(short, query, key, value, offset), expected)
    without = Memory(short.states, short.bias.clamp(max=0), short.index, short.count)
    assert float((attend(without, query, key, value, offset) - expected).abs().max()) > 0.1


def test_zero_gating_with_nothing_and_everything_dropped() -> None:
    x, mask = torch.ones(2, 3, 2), torch.ones(2, 3, dtype=torch.bool)
    memory = compress(x, Gates(torch.tensor([[1.0, 1, 1], [0, 0, 0]])), mask, "zero")
    assert memory.count.tolist() == [0, 3]
    assert memory.index.tolist() == [[-1, 0, 1, 2], [-1, -1, -1, -1]]
    assert memory.bias[0, 0, 0].tolist() == [-torch.inf, 0, 0, 0]
    torch.testing.assert_close(memory.bias[1, 0, 0], torch.tensor([3.0, 0, 0, 0]).log())
    assert torch.equal(memory.states[1], torch.zeros(4, 2))


def test_mean_gating_with_nothing_and_everything_dropped() -> None:
    """An open sentence keeps its encodings; a closed one becomes its mean, counted as often as it has tokens."""
    x, mask = torch.tensor([[[1.0], [2], [9]], [[1], [2], [9]]]), torch.ones(2, 3, dtype=torch.bool)
    memory = compress(x, Gates(torch.tensor([[1.0, 1, 1], [0, 0, 0]])), mask, "mean")
    assert memory.index.tolist() == [[-1, 0, 1, 2], [-1, -1, -1, -1]]
    assert memory.states[..., 0].tolist() == [[0, 1, 2, 9], [4, 0, 0, 0]]
    assert memory.bias[0, 0, 0].tolist() == [-torch.inf, 0, 0, 0]
    torch.testing.assert_close(memory.bias[1, 0, 0], torch.tensor([3.0, 0, 0, 0]).log())


def test_mean_gating_is_continuous_and_half_open_rows_are_mixed() -> None:
    x, mask = torch.tensor([[[1.0], [5], [9]]]).double(), torch.ones(1, 3, dtype=torch.bool)
    half = full(x, Gates(torch.tensor([[1.0, 0.5, 0]]).double()), mask, "mean").states[0, :, 0]
    mean = (0.5 * 5 + 1 * 9) / 1.5
    torch.testing.assert_close(half, torch.tensor([1, 0.5 * 5 + 0.5 * mean, mean]).double())
    for near, limit in (
        ([1.0, 1e-9, 0], [1.0, 0, 0]),
        ([1.0, 1 - 1e-9, 1], [1.0, 1, 1]),
        ([1.0, 1 - 1e-9, 0], [1.0, 1, 0]),
    ):
        both = [full(x, Gates(torch.tensor([gate]).double()), mask, "mean").states for gate in (near, limit)]
        torch.testing.assert_close(*both, atol=1e-7, rtol=0)


def test_mean_gating_has_finite_gradients_where_all_gates_are_open() -> None:
    """The mean of nothing is 0, and its gradient is finite; half-open gates agree with finite differences."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    gate = torch.ones(2, 4, dtype=torch.float64).masked_fill(~mask, 0).requires_grad_()
    found = torch.autograd.grad(full(x, Gates(gate), mask, "mean").states.square().sum(), (x, gate))
    assert all(gradient.isfinite().all() for gradient in found)
    inside = torch.tensor([[0.2, 0.9, 0, 1], [0.4, 0, 0.7, 0]], dtype=torch.float64)
    half = inside.requires_grad_()

    def states(x: Tensor, gate: Tensor) -> Tensor:
        return full(x, Gates(gate.clamp(0, 1)), mask, "mean").states[mask]

    interior = torch.tensor([[0.2, 0.9, 0.1, 0.8], [0.4, 0.3, 0.7, 0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, g: states(x, g * mask), (x, interior))
    assert states(x, half).isfinite().all()


def test_a_sentence_with_all_gates_closed_keeps_its_best_position() -> None:
    mask = torch.tensor([[True, True, True, False], [False, True, True, True]])
    closed = torch.zeros(2, 4)
    by_score = Gates(closed, None, torch.tensor([[-5.0, -3, -3, 9], [9, -7, -6, -8]]))
    for gating in ("mask", "weight"):
        assert keep_one(by_score, mask, gating).values.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
        assert keep_one(Gates(closed), mask, gating).values.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
        assert compress(torch.randn(2, 4, 3), by_score, mask, gating).count.tolist() == [2, 2]
    assert torch.equal(keep_one(by_score, mask, "zero").values, closed)


def test_padding_may_hold_anything() -> None:
    x = torch.randn(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    x[0, 2:] = torch.nan
    for gating in GATINGS:
        memory = compress(x, Gates(mask.float()), mask, gating)
        assert memory.states.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_bias_is_float32_unless_states_are_float64(dtype: torch.dtype) -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    for gating in GATINGS:
        memory = compress(torch.randn(1, 3, 2).to(dtype), Gates(torch.tensor([[1.0, 0, 0.5]])), mask, gating)
        assert memory.states.dtype == dtype
        assert memory.bias.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_weight_gating_equals_renormalised_weights_in_value_and_gradient() -> None:
    """Including padding, gates of exactly 0 and 1, and a sentence whose gates are all closed: no NaN."""
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(6) < torch.tensor([[6], [4], [5]])
    log_alpha = torch.tensor([[-9.0, 9, 0.3, -0.4, 1, -2.0], [0.1, -9, 9, 1, 0, 0], [-9, -8, -7, -9, -9, 0]]).double()
    query = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    key, value = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    offset = torch.randn(4, generator=generator, dtype=torch.float64)
    data = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    results = []
    for attention in ("bias", "definition"):
        x, a = data.clone().requires_grad_(), log_alpha.clone().requires_grad_()
        values = (torch.sigmoid(a) * 1.2 - 0.1).clamp(0, 1) * mask
        assert {0.0, 1.0} <= set(values[0].tolist())
        gates = Gates(values, None, a)
        if attention == "bias":
            out = attend(full(x, gates, mask, "weight"), query, key, value, offset)
        else:
            final = keep_one(gates, mask, "weight").values
            out = by_definition(x, final, mask, "weight", (query, key, value, offset))
        gradients = torch.autograd.grad((out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum(), (x, a))
        results.append((out, *gradients))
    for ours, reference in zip(*results, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, reference, atol=1e-10, rtol=1e-10)


def test_bad_input_is_refused_by_name() -> None:
    x, mask, gates = torch.randn(2, 3, 2), torch.ones(2, 3, dtype=torch.bool), Gates(torch.ones(2, 3))
    with pytest.raises(ValueError, match="gating: expected one of zero, mask, weight, mean, got 'drop'"):
        compress(x, gates, mask, "drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask: expected shape"):
        compress(x, gates, mask[:, :2])
    empty = torch.tensor([[True, True, True], [False, False, False]])
    for build in (compress, full):
        with pytest.raises(ValueError, match="attention_mask: sentence 1 of the batch has no real token"):
            build(x, Gates(empty.float()), empty)


@pytest.mark.parametrize(("gating", "expected"), [("zero", [0, 1, 2, -1]), ("mask", [0, -1, 2, -1])])
def test_the_dense_memory_names_the_positions_it_shows(gating: str, expected: list[int]) -> None:
    mask = torch.tensor([[True, True, True, False]])
    memory = full(torch.randn(1, 4, 3), Gates(torch.tensor([[1.0, 0, 0.5, 0]])), mask, gating)  # type: ignore[arg-type]
    assert memory.index.tolist() == [expected]
    assert memory.count.tolist() == [1]


def test_long_memories_keep_their_source_order() -> None:
    mask = torch.ones(1, 600, dtype=torch.bool)
    values = (torch.arange(600) % 3 != 0).float()[None]
    memory = compress(torch.randn(1, 600, 2), Gates(values), mask, "mask")
    assert memory.index[0].tolist() == [i for i in range(600) if i % 3]


def test_a_sentence_with_log_alpha_minus_infinity_everywhere_keeps_its_first_real_token() -> None:
    mask = torch.tensor([[False, False, True, True], [True, True, False, False]])
    gates = Gates(torch.zeros(2, 4), None, torch.full((2, 4), -torch.inf))
    assert compress(torch.randn(2, 4, 3), gates, mask, "mask").index.tolist() == [[2], [0]]
