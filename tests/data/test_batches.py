from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0drop.data.batches import Step, TokenBatches, collate
from l0drop.data.corpus import Example

Lengths = tuple[np.ndarray, np.ndarray]


@st.composite
def corpora(draw: st.DrawFn) -> Lengths:
    count = draw(st.integers(8, 120))
    longest = draw(st.integers(1, 40))
    lengths = st.lists(st.integers(1, longest), min_size=count, max_size=count)
    return np.array(draw(lengths)), np.array(draw(lengths))


def batches_of(lengths: Lengths, budget: int, seed: int = 3, **options: int) -> TokenBatches:
    return TokenBatches(lengths[0], lengths[1], budget, seed=seed, **options)


def parts_of(step: Step) -> list[np.ndarray]:
    return [part for rank in step.micro_batches for part in rank]


def sentences_of(step: Step) -> list[int]:
    return sorted(np.concatenate(parts_of(step)).tolist())


def padded_tokens(step: Step, lengths: np.ndarray) -> int:
    """Sentences × longest side, summed over micro-batches."""
    return sum(len(part) * int(lengths[part].max()) for part in parts_of(step))


def sequence_of(steps: list[Step]) -> list[tuple[int, int, list[list[int]]]]:
    return [(step.epoch, step.position, [part.tolist() for part in parts_of(step)]) for step in steps]


@settings(max_examples=150, deadline=None)
@given(
    lengths=corpora(),
    extra=st.integers(0, 300),
    processes=st.sampled_from([1, 2, 4]),
    accumulation=st.sampled_from([1, 2]),
    max_sentences=st.sampled_from([None, 15, 40]),
    pool=st.sampled_from([8, 30, 1000]),
    epoch=st.integers(0, 3),
)
def test_every_sentence_occurs_once_within_all_limits(
    lengths: Lengths,
    extra: int,
    processes: int,
    accumulation: int,
    max_sentences: int | None,
    pool: int,
    epoch: int,
) -> None:
    longer = np.maximum(*lengths)
    parts = processes * accumulation
    budget = int(longer.max()) * (2 * parts - 1) + extra  # with extra = 0, the smallest that is accepted
    batches = TokenBatches(
        *lengths,
        budget,
        seed=3,
        max_sentences=max_sentences,
        pool=pool,
        processes=processes,
        accumulation=accumulation,
    )
    steps = list(batches.steps(epoch))
    assert sorted(index for step in steps for index in sentences_of(step)) == list(range(len(longer)))
    for step in steps:
        chosen = sentences_of(step)
        assert len(chosen) * longer[chosen].max() <= budget
        assert len(chosen) <= (max_sentences or budget)
        assert len(step.micro_batches) == processes
        assert all(len(rank) == accumulation for rank in step.micro_batches)
        assert all(len(part) > 0 for part in parts_of(step))
        largest = max(len(part) * longer[part].max() for part in parts_of(step))
        assert largest <= -(-len(chosen) // parts) * longer[chosen].max()
        assert step.sentences == len(chosen)
        assert (step.source_tokens, step.target_tokens) == (lengths[0][chosen].sum(), lengths[1][chosen].sum())


@settings(max_examples=60, deadline=None)
@given(lengths=corpora(), extra=st.integers(0, 300), epoch=st.integers(0, 3))
def test_the_sentences_of_a_step_do_not_depend_on_the_number_of_processes(
    lengths: Lengths, extra: int, epoch: int
) -> None:
    budget = int(np.maximum(*lengths).max()) * 15 + extra
    alone = [sentences_of(step) for step in batches_of(lengths, budget).steps(epoch)]
    for processes, accumulation in [(1, 2), (2, 1), (1, 4), (2, 2), (4, 2), (8, 1)]:
        many = batches_of(lengths, budget, processes=processes, accumulation=accumulation).steps(epoch)
        assert [sentences_of(step) for step in many] == alone


@settings(max_examples=40, deadline=None)
@given(lengths=corpora(), seed=st.integers(0, 99), start=st.integers(0, 40))
def test_resuming_gives_the_same_steps(lengths: Lengths, seed: int, start: int) -> None:
    budget = int(np.maximum(*lengths).max()) * 7

    def some(first: int, count: int) -> list[tuple[int, int, list[list[int]]]]:
        fresh = batches_of(lengths, budget, seed=seed, processes=2, accumulation=2)
        return sequence_of(list(islice(fresh.steps_from(first), count)))

    assert some(start, 30) == some(0, start + 30)[start:]


def test_steps_from_zero_are_the_epochs_one_after_another() -> None:
    lengths = np.arange(1, 41), np.arange(40, 0, -1)
    batches = batches_of(lengths, 200)
    epochs = [step for epoch in range(3) for step in batches.steps(epoch)]
    assert sequence_of(list(islice(batches.steps_from(0), len(epochs)))) == sequence_of(epochs)


def test_each_process_gets_its_part() -> None:
    lengths = np.arange(1, 41), np.arange(1, 41)
    per_rank = [list(batches_of(lengths, 450, processes=3, rank=rank, accumulation=2).steps(0)) for rank in range(3)]
    for steps in zip(*per_rank, strict=True):
        for rank, step in enumerate(steps):
            for mine, listed in zip(step.mine, steps[0].micro_batches[rank], strict=True):
                np.testing.assert_array_equal(mine, listed)
        in_time = [rank[turn] for turn in range(2) for rank in steps[0].micro_batches]
        assert (
            np.diff(lengths[0][np.concatenate(in_time)]) > 0
        ).all()  # micro-batches that run at the same time have similar lengths


def test_epochs_and_seeds_shuffle() -> None:
    lengths = np.full(300, 5), np.full(300, 5)

    def first_epochs(seed: int) -> list[list[list[int]]]:
        return [[sentences_of(step) for step in batches_of(lengths, 100, seed=seed).steps(e)] for e in range(2)]

    one, two = first_epochs(1)
    assert one != two
    assert sorted(one) != sorted(two)  # steps have other sentences, not only another order
    assert first_epochs(1) == [one, two]
    assert first_epochs(2) != [one, two]


def test_steps_hold_sentences_of_similar_length_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 5_000)
    steps = list(batches_of((lengths, lengths), 1_000).steps(0))
    real = sum(step.source_tokens for step in steps)
    assert real / sum(padded_tokens(step, lengths) for step in steps) > 0.95
    longest = [lengths[sentences_of(step)].max() for step in steps]
    assert abs(np.corrcoef(longest, np.arange(len(steps)))[0, 1]) < 0.2


def test_micro_batches_have_balanced_padded_tokens() -> None:
    lengths = np.array([1, 1, 1, 1, 2, 2, 4, 4])
    (step,) = batches_of((lengths, lengths), 1_000, processes=3).steps(0)
    areas = sorted(len(part) * lengths[part].max() for part in parts_of(step))
    assert areas == [4, 4, 8]


def test_small_pools_still_shuffle_across_the_corpus() -> None:
    lengths = np.full(400, 3)
    steps = batches_of((lengths, lengths), 60, pool=20).steps(0)
    spans = [max(sentences_of(step)) - min(sentences_of(step)) for step in steps]
    assert min(spans) > 100


def test_source_only_corpora_use_source_lengths() -> None:
    lengths = np.arange(1, 30)
    steps = list(TokenBatches(lengths, None, 60, seed=0).steps(0))
    assert sum(step.source_tokens for step in steps) == lengths.sum()
    assert all(step.target_tokens == 0 and padded_tokens(step, lengths) <= 60 for step in steps)


def test_an_error_names_a_sentence_that_does_not_fit() -> None:
    lengths = np.full(50, 3), np.full(50, 4)
    lengths[1][17] = 30
    with pytest.raises(ValueError, match=r"sentence 17 has 30 tokens.* sentences of up to 29"):
        batches_of(lengths, 29)
    assert len(list(batches_of(lengths, 30).steps(0))) > 1
    with pytest.raises(ValueError, match=r"sentence 17 has 30 tokens.*2 processes × 2 accumulation.* up to 29"):
        batches_of(lengths, 209, processes=2, accumulation=2)
    batches_of(lengths, 210, processes=2, accumulation=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rank": 2, "processes": 2}, "rank=2"),
        ({"accumulation": 0}, "accumulation=0"),
        ({"processes": 60}, "50 sentences are too few"),
        ({"processes": 2, "max_sentences": 2}, "max_sentences=2"),
        ({"processes": 4, "pool": 3}, "pool=3"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        batches_of((np.full(50, 3), np.full(50, 3)), 10_000, **options)


def test_invalid_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 source lengths but 3"):
        batches_of((np.ones(2), np.ones(3)), 10)
    with pytest.raises(ValueError, match="sentence 1 has no source token"):
        batches_of((np.array([1, 0, 2]), np.ones(3)), 10)


def example(index: int, source: list[int], target: list[int] | None, tags: list[int]) -> Example:
    hints = {"tag": np.array(tags)}
    return Example(np.array(source), None if target is None else np.array(target), hints, index)


def test_collate_pads_each_side_separately() -> None:
    batch = collate([example(7, [5, 6, 1], [8, 1], [2, 3, 0]), example(2, [9, 1], [4, 3, 2, 1], [1, 0])], pad_id=0)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [9, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[8, 1, -100, -100], [4, 3, 2, 1]]
    assert batch["hints"]["tag"].tolist() == [[2, 3, 0], [1, 0, -1]]
    assert batch["index"].tolist() == [7, 2]
    tensors = [batch["input_ids"], batch["attention_mask"], batch["labels"], batch["hints"]["tag"], batch["index"]]
    assert all(tensor.dtype == torch.int64 for tensor in tensors)


def test_the_mask_covers_real_tokens_that_look_like_padding() -> None:
    batch = collate([example(0, [0, 0, 1], [1], [0, 0, 0]), example(1, [1], [1], [0])], pad_id=0)
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_collate_without_targets_has_no_labels() -> None:
    assert "labels" not in collate([example(0, [3, 1], None, [0, 0])], pad_id=0)


@settings(max_examples=150, deadline=None)
@given(
    lengths=corpora(),
    extra=st.integers(0, 300),
    processes=st.sampled_from([1, 2, 4]),
    accumulation=st.sampled_from([1, 2]),
    max_sentences=st.sampled_from([None, 15, 40]),
    pool=st.sampled_from([8, 30, 1000]),
    multiple=st.sampled_from([1, 4, 8]),
    epoch=st.integers(0, 3),
)
def test_with_a_multiple_the_length_of_a_step_determines_its_size(
    lengths: Lengths,
    extra: int,
    processes: int,
    accumulation: int,
    max_sentences: int | None,
    pool: int,
    multiple: int,
    epoch: int,
) -> None:
    longer = np.maximum(*lengths)
    parts = processes * accumulation
    budget = int(longer.max()) * (2 * parts - 1) + extra
    options = {"processes": processes, "accumulation": accumulation, "pool": pool, "multiple": multiple}
    if max_sentences is not None:
        options["max_sentences"] = max_sentences
    steps = list(batches_of(lengths, budget, **options).steps(epoch))
    assert sorted(i for step in steps for i in sentences_of(step)) == list(range(len(longer)))
    odd = 0
    for step in steps:
        assert step.length is not None
        assert step.length % multiple == 0 or step.length == longer.max()
        longest = int(longer[sentences_of(step)].max())
        assert longest <= step.length < longest + multiple
        assert step.sentences * step.length <= budget
        assert all(len(part) > 0 for part in parts_of(step))
        assert max(map(len, parts_of(step))) == -(-step.sentences // parts)
        odd += step.sentences != min(budget // step.length, max_sentences or budget)
    assert odd <= 2 * max(1, len(longer) // pool)


def test_both_sides_are_padded_to_the_length_of_the_step() -> None:
    examples = [
        Example(index=i, source=np.arange(2, 2 + n), target=np.arange(5, 5 + m), hints={"tag": np.arange(n)})
        for i, (n, m) in enumerate([(2, 3), (4, 1)])
    ]
    batch = collate(examples, 0, length=8)
    assert batch["input_ids"].tolist() == [[2, 3, 0, 0, 0, 0, 0, 0], [2, 3, 4, 5, 0, 0, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [2, 4]
    assert batch["labels"].tolist() == [[5, 6, 7] + [-100] * 5, [5] + [-100] * 7]
    assert batch["hints"]["tag"].tolist() == [[0, 1] + [-1] * 6, [0, 1, 2, 3] + [-1] * 4]
