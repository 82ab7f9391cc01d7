"""The loop of a search: from memories to finished hypotheses, one decoder step per token.

Sentences with memories of similar length are searched together, and finished sentences leave the batch.

Shapes: B sentences, P given tokens, K memory rows, k beams, R = B·k rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from l0drop.core.memory import Memory
from l0drop.decoding.caches import DecoderCache
from l0drop.decoding.decoder import Decoder
from l0drop.decoding.grouping import cheapest_groups
from l0drop.decoding.search import Hypotheses, Search, beam_step, broken, refuse_broken, sample_step, start

SHRINK_AT = 0.75
"""Finished sentences are removed from the batch when at most this share of it is still running."""

GROUP_COST = 5.0
ROW_COST = 1 / 1_000
"""Cost of a decoding step and of one memory row, relative to the linear layers for one sentence."""


def group_by_rows(rows: Sequence[int]) -> list[list[int]]:
    """Sentences to decode together, longest memory first, so that short memories are not padded to long ones.

    A group costs its decoding steps, and each of its sentences costs as much as the longest memory of the group.
    """
    return cheapest_groups(rows, lambda members, longest: GROUP_COST + members * (1 + ROW_COST * longest))


def search_memories(
    decoder: Decoder,
    memory: Memory,
    sentences: Tensor,
    rows_B: Tensor,
    search: Search,
    given_BP: Tensor | None,
) -> tuple[Hypotheses, int]:
    """The finished hypotheses of these sentences of a batch, and the bytes of their memory's keys and values."""
    longest = int(rows_B.max())
    states = memory.states[sentences, :longest]
    bias = memory.bias[sentences, :, :, :longest]
    beams = search.beams
    count = len(sentences)
    groups, width = (count * beams, 1) if search.sample else (count, beams)
    cache = DecoderCache(decoder.layers, groups, width, search.max_length - 1, states.device, search.given)
    hypotheses = start(search, count, states.device, given_BP)
    result, memory_bytes = hypotheses, 0
    present = torch.arange(count, device=states.device)  # the sentences that are still in the batch
    step = sample_step if search.sample else beam_step
    # one row per group up to the first step: its beams are still identical
    shared = hypotheses.tokens[:, :, : search.given].flatten(0, 1)[::width]
    for position in range(search.given - 1):
        decoder.read(shared[:, position : position + 1], states, bias, cache)
    tokens = shared[:, -1:]
    for length in range(search.given, search.max_length):
        logits = decoder(tokens, states, bias, cache)
        if length == search.given:
            memory_bytes = cache.memory_bytes
            states = states[:, :1]  # from now on only the cached keys and values are read
        were_open = hypotheses.open
        hypotheses, parents = step(logits, hypotheses, length, search)
        # one transfer from the device for both numbers
        running, not_finite = torch.stack([hypotheses.open.sum(), broken(hypotheses, were_open)]).tolist()
        if not_finite:
            refuse_broken(logits, length, search)
        if not search.sample:
            cache.descend(parents)
        if running <= SHRINK_AT * len(present) or length + 1 == search.max_length:
            result = _merged(result, present, hypotheses)
            if running == 0 or length + 1 == search.max_length:
                break
            stay = hypotheses.open.nonzero().flatten()
            longest = int(rows_B[present[stay]].max())
            cache.keep(stay, _rows_of(stay, beams) if search.sample else stay, longest)
            present, hypotheses = present[stay], hypotheses.take(stay)
            bias, states = bias[stay, :, :, :longest], states[stay]
        tokens = hypotheses.tokens[:, :, length].reshape(-1, 1)
    return result, memory_bytes


def _rows_of(sentences: Tensor, beams: int) -> Tensor:
    """[R], the rows of these sentences."""
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


def _merged(result: Hypotheses, present: Tensor, hypotheses: Hypotheses) -> Hypotheses:
    """The result for all sentences, updated with the sentences that are still in the batch."""
    return Hypotheses(*(whole.index_copy(0, present, part) for whole, part in zip(result, hypotheses, strict=True)))
