"""Shorteners: the contract, four of them against closed forms and slow twins, and independence of batch and padding."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, compress, full, pool
from l0drop.core.registry import UnregisteredError
from l0drop.core.shorteners import (
    SHORTENERS,
    MeanPool,
    Merge,
    Shortener,
    TopAttention,
    TopNorm,
    merged_rows,
    register_shortener,
)
from l0drop.models.patterns import NormGate

NAMES = ("mean_pool", "merge", "top_norm", "top_attention")
WIDTH = 4
shares = st.floats(0.01, 1, exclude_min=True)


@st.composite
def batches(draw: st.DrawFn, most: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    """Encodings, a mask with padding anywhere, and the attention that positions receive."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, most))
    mask = torch.tensor(
        [draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any)) for _ in range(rows)]
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)
    attention = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    return x.masked_fill(~mask[..., None], torch.nan), mask, attention


def shortened(name: str, keep: float, x: Tensor, mask: Tensor, attention: Tensor) -> Memory:
    return SHORTENERS.class_of(name)(keep)(x, mask, attention)


def rows_of(memory: Memory, sentence: int) -> tuple[Tensor, Tensor, Tensor]:
    """States, bias and index of one sentence, without padding."""
    seen = memory.bias[sentence, 0, 0] > -torch.inf
    return memory.states[sentence, seen], memory.bias[sentence, 0, 0, seen], memory.index[sentence, seen]


def wanted(keep: float, real: int) -> int:
    return max(1, round(keep * real))


def mean_groups(x: list[Tensor], n: int) -> list[int]:
    """The sizes of `n` groups of neighbours that are spread evenly."""
    bounds = [math.ceil(k * len(x) / n) for k in range(n + 1)]
    return [after - before for before, after in pairwise(bounds)]


def merged_groups(x: list[Tensor], n: int) -> list[int]:
    """The sizes of the groups after merging the two most similar neighbours, one pair after the other."""
    groups = [[row] for row in x]
    while len(groups) > n:
        means = [torch.stack(group).mean(0) for group in groups]
        similar = [torch.cosine_similarity(a, b, dim=0).item() for a, b in pairwise(means)]
        best = similar.index(max(similar))
        groups[best : best + 2] = [groups[best] + groups[best + 1]]
    return [len(group) for group in groups]


@pytest.mark.parametrize(("name", "groups_of"), [("mean_pool", mean_groups), ("merge", merged_groups)])
@given(batch=batches(), keep=shares)
@settings(max_examples=40)
def test_rows_are_means_of_neighbours_with_the_log_of_their_size(name, groups_of, batch, keep):
    x, mask, attention = batch
    memory = shortened(name, keep, x, mask, attention)
    memory.check(x, mask)
    for sentence, real in enumerate(mask):
        tokens, positions = list(x[sentence, real]), real.nonzero().flatten()
        sizes = groups_of(tokens, wanted(keep, len(tokens)))
        states, bias, index = rows_of(memory, sentence)
        groups = torch.stack(tokens).split(sizes)
        torch.testing.assert_close(states, torch.stack([group.mean(0) for group in groups]))
        torch.testing.assert_close(bias, torch.tensor(sizes, dtype=torch.float64).log())
        assert index.tolist() == [int(group[0]) for group in positions.split(sizes)]
        assert int(memory.count[sentence]) == len(tokens) - len(sizes)


@given(batch=batches(most=40), keep=shares)
@settings(max_examples=20)
def test_sizes_of_means_of_neighbours_differ_by_at_most_one(batch, keep):
    x, mask, attention = batch
    memory = shortened("mean_pool", keep, x, mask, attention)
    for sentence in range(len(mask)):
        sizes = rows_of(memory, sentence)[1].exp().round()
        assert float(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize("name", ["top_norm", "top_attention"])
@given(batch=batches(), keep=shares)
@settings(max_examples=40)
def test_the_largest_scores_stay_unchanged_and_in_order(name, batch, keep):
    x, mask, attention = batch
    scores = x.norm(dim=-1) if name == "top_norm" else attention
    memory = shortened(name, keep, x, mask, attention)
    memory.check(x, mask)
    for sentence, real in enumerate(mask):
        positions = real.nonzero().flatten().tolist()
        best = sorted(positions, key=lambda i: -float(scores[sentence, i]))[: wanted(keep, len(positions))]
        states, bias, index = rows_of(memory, sentence)
        assert index.tolist() == sorted(best)
        assert torch.equal(states, x[sentence, sorted(best)])
        assert not bias.any()
        assert int(memory.count[sentence]) == len(positions) - len(best)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches(), keep=shares, left=st.integers(0, 3), right=st.integers(0, 3))
@settings(max_examples=25)
def test_a_sentence_does_not_depend_on_its_batch_or_on_padding(name, batch, keep, left, right):
    x, mask, attention = batch
    together = shortened(name, keep, x, mask, attention)
    for sentence in range(len(mask)):
        one = slice(sentence, sentence + 1)
        padding = (left, right)
        alone = shortened(
            name, keep,
            torch.nn.functional.pad(x[one], (0, 0, *padding), value=torch.nan),
            torch.nn.functional.pad(mask[one], padding),
            torch.nn.functional.pad(attention[one], padding, value=2.0),
        )  # fmt: skip
        states, bias, index = rows_of(together, sentence)
        own_states, own_bias, own_index = rows_of(alone, 0)
        assert torch.equal(states, own_states)
        assert torch.equal(bias, own_bias)
        assert torch.equal(index, own_index - left)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches())
@settings(max_examples=10)
def test_keeping_everything_changes_nothing(name, batch):
    x, mask, attention = batch
    memory = shortened(name, 1.0, x, mask, attention)
    for sentence, real in enumerate(mask):
        states, bias, index = rows_of(memory, sentence)
        assert torch.equal(states, x[sentence, real])
        assert not bias.any()
        assert index.tolist() == real.nonzero().flatten().tolist()


def attended(query: Tensor, memory: Memory) -> Tensor:
    """Plain attention of queries [B, T, D] over a memory, whose padding is left out."""
    scores = query @ memory.states.mT + memory.bias[:, 0]
    return scores.softmax(-1) @ memory.states


@pytest.mark.parametrize("name", ["mean_pool", "merge"])
@given(batch=batches(), keep=shares)
@settings(max_examples=25)
def test_attention_is_that_over_all_positions_with_their_groups_means(name, batch, keep):
    x, mask, attention = batch
    memory = shortened(name, keep, x, mask, attention)
    spread = x.clone()
    for sentence, real in enumerate(mask):
        states, bias, _ = rows_of(memory, sentence)
        spread[sentence, real] = states.repeat_interleave(bias.exp().round().long(), 0)
    spread = spread.masked_fill(~mask[..., None], 0)
    query = torch.randn(len(x), 3, WIDTH, dtype=torch.float64)
    whole = full(spread, Gates(mask.double()), mask, "mask")
    torch.testing.assert_close(attended(query, memory), attended(query, whole), rtol=0, atol=1e-12)


def test_the_top_norm_shortener_is_the_norm_gate_with_gating_mask():
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(3, 9, WIDTH, generator=generator), torch.arange(9) < torch.tensor([[9], [5], [1]])
    one, other = TopNorm(0.4)(x, mask), compress(x, NormGate(0.6)(x, mask), mask, "mask")
    for name in ("states", "bias", "index", "count"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_merging_joins_what_is_alike():
    x = torch.tensor([[[1.0, 0], [0, 1], [0, 2], [1, 0], [3, 0.1], [-1, 0]]])
    rows = merged_rows(x, torch.ones(1, 6, dtype=torch.bool), torch.tensor([4]))
    assert rows.tolist() == [[0, 1, 1, 2, 2, 3]]


def test_equal_similarities_are_merged_from_the_start():
    x = torch.ones(1, 5, 2)
    rows = merged_rows(x, torch.ones(1, 5, dtype=torch.bool), torch.tensor([3]))
    assert rows.tolist() == [[0, 0, 0, 1, 2]]


def test_encodings_of_damaged_weights_are_merged_without_an_index_error():
    x = torch.full((2, 5, 2), torch.nan)
    rows = merged_rows(x, torch.ones(2, 5, dtype=torch.bool), torch.tensor([1, 2]))
    assert rows.max(1).values.tolist() == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_differentiable(name):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    attention = torch.rand(2, 6, generator=generator)
    assert torch.autograd.gradcheck(lambda x: shortened(name, 0.5, x, mask, attention).states, x)
    (gradient,) = torch.autograd.grad(shortened(name, 0.5, x, mask, attention).states.sum(), x)
    assert not gradient[~mask].any()
    used = (gradient != 0).all(-1).sum(1).tolist()
    assert used == ([6, 4] if name in ("mean_pool", "merge") else [3, 2])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_types(name, dtype):
    x, mask = torch.randn(2, 6, WIDTH).to(dtype), torch.arange(6) < torch.tensor([[6], [4]])
    memory = shortened(name, 0.5, x, mask, torch.rand(2, 6))
    assert memory.states.dtype == dtype
    assert memory.bias.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_means_are_summed_in_float32():
    x = torch.full((1, 300, 1), 1.0).bfloat16()
    assert pool(x, torch.zeros(1, 300, dtype=torch.long), torch.ones(1, 300)).states.item() == 1.0


def test_groups_of_a_pool_need_not_be_neighbours():
    x = torch.arange(4.0)[None, :, None]
    memory = pool(x, torch.tensor([[0, 1, 0, 1]]), torch.ones(1, 4))
    assert memory.states.flatten().tolist() == [1, 2]
    assert memory.index.tolist() == [[0, 1]]
    assert memory.count.tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 0, 0]], "in the order of their first tokens"),
        ([[0, 2, 2]], "numbered from 0"),
        ([[0, -1, 1]], "the row of each real token"),
        ([[0.0, 0.0, 1.0]], "expected whole numbers of shape"),
        ([[0, 1]], "expected whole numbers of shape"),
    ],
)
def test_rows_that_are_no_groups(rows, message):
    with pytest.raises(ValueError, match=f"rows: .*{message}"):
        pool(torch.randn(1, 3, 2), torch.tensor(rows), torch.ones(1, 3))


def memory_of(**changes: Tensor) -> Memory:
    """A memory of rows 0 and 2 of three tokens, of width 2, with some fields replaced."""
    fields = {
        "states": torch.zeros(1, 3, 2),
        "bias": torch.tensor([0.0, 0.0, -torch.inf]).view(1, 1, 1, 3),
        "index": torch.tensor([[0, 2, -1]]),
        "count": torch.tensor([1]),
    }
    return Memory(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": torch.zeros(1, 3, 4)}, "Memory.states: expected shape"),
        ({"bias": torch.zeros(1, 3)}, "Memory.bias: expected shape"),
        ({"count": torch.tensor([1, 1])}, "Memory.count: expected shape"),
        ({"index": torch.tensor([[2, 0, -1]])}, "Memory.index: .*in source order"),
        ({"index": torch.tensor([[0, 0, -1]])}, "Memory.index: .*in source order"),
        ({"index": torch.tensor([[0, 3, -1]])}, "Memory.index: .*of a real token"),
        ({"index": torch.tensor([[0, 9, -1]])}, "Memory.index: .*of a real token"),
        ({"index": torch.tensor([[0, -1, -1]])}, "Memory.index: .*for each row"),
        ({"index": torch.tensor([[0, 1, 2]])}, "Memory.index: .*-1 on padding"),
        ({"count": torch.tensor([2])}, "Memory.count: expected the number of real tokens less the number of rows"),
        ({"bias": torch.full((1, 1, 1, 3), -torch.inf)}, "Memory.bias: a sentence has no row"),
    ],
)
def test_a_memory_that_breaks_the_contract(changes, message):
    x, mask = torch.zeros(1, 4, 2), torch.tensor([[True, True, True, False]])
    memory_of().check(x, mask)
    with pytest.raises(ValueError, match=message):
        memory_of(**changes).check(x, mask)


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, math.nan])
def test_shares_that_are_refused(keep):
    with pytest.raises(ValueError, match="keep: expected a"):
        MeanPool(keep)


def test_attention_must_be_given():
    with pytest.raises(ValueError, match="attention: top_attention needs"):
        TopAttention()(torch.randn(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))


def test_a_sentence_without_tokens():
    for name in NAMES:
        mask = torch.tensor([[True, True], [False, False]])
        with pytest.raises(ValueError, match="attention_mask: sentence 1 of the batch has no real token"):
            shortened(name, 0.5, torch.randn(2, 2, WIDTH), mask, torch.rand(2, 2))


def test_the_registry_finds_shorteners_again():
    again = SHORTENERS.class_of(SHORTENERS.name_of(Merge(0.3))).build({"keep": 0.3}, width=8)
    assert isinstance(again, Merge)
    assert again.arguments == copy.deepcopy(again).arguments == {"keep": 0.3}
    with pytest.raises(UnregisteredError, match="no shortener is registered as 'absent' .*@register_shortener"):
        SHORTENERS.class_of("absent")
    with pytest.raises(ValueError, match="shortener: the name 'merge' is taken by"):
        register_shortener("merge")(TopNorm)
    with pytest.raises(ValueError, match="shortener_args: Merge does not take"):
        Merge.build({"share": 0.3}, width=8)

    class Unregistered(Shortener):
        pass

    with pytest.raises(ValueError, match="Unregistered is not registered.*@register_shortener"):
        SHORTENERS.name_of(Unregistered())
    with pytest.raises(NotImplementedError, match="must override forward"):
        Unregistered()(torch.randn(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))
