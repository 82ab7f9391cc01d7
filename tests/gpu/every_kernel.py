"""Run every decoding kernel in every compiled variant at ragged shapes, for a memory checker:

compute-sanitizer python -m tests.gpu.every_kernel

A checker watches every kernel that runs, torch's too, and is slow. So tensors are drawn on the CPU and copied, and a
search jumps to its last step.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from l0drop.decoding.gpu import kernels
from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.search import Search, Timestamps

POSITIONS = 64
"""More than attention to the target reads at a time."""
MEMORIES = (1, 64, 65, 300, 129)
"""Rows of the memories."""
HEADS, BEAMS = 3, 5
WIDTHS = (120, 600)
MANY, FEW = (16, 5000), (1, 500)
"""Beams and vocabularies that change the number of threads."""
DTYPES = (torch.bfloat16, torch.float32)


def main(device: str = "cuda") -> None:
    torch.manual_seed(0)
    for dtype in DTYPES:
        run_norms(device, dtype)
        run_attention(device, dtype)
    for number, (repeats, times, renormalize) in enumerate(itertools.product((False, True), repeat=3)):
        timestamps = Timestamps(first=4000, none=3999, eos=2) if times else None
        repetition = {"no_repeat_ngram": 2, "repetition_penalty": 1.2} if repeats else {}
        changes = {"renormalize": renormalize, "timestamps": timestamps, **repetition}
        run_search(device, DTYPES[number % 2], BEAMS, 5000, **changes)
    for beams, vocabulary in (MANY, FEW):
        run_search(device, torch.bfloat16, beams, vocabulary)


def run_norms(device: str, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        x, weight = drawn(device, dtype, 7, width), drawn(device, dtype, 2, width)
        for other, bias, rms in itertools.product((x, None), (weight[1], None), (False, True)):
            kernels.add_norm(x, other, weight[0], bias, 1e-5, rms)
        kernels.add_norm(x, drawn(device, torch.float32, 7, width), weight[0], None, 1e-5, True)  # as in T5


def run_attention(device: str, dtype: torch.dtype) -> None:
    """Embeddings and attention: at the first token, and at a late one while a slot is closed."""
    width, slots = WIDTHS[0], len(MEMORIES)
    state = opened(device, dtype, slots, BEAMS, width, given=1)
    words, positions = (drawn(device, dtype, count, width) for count in (9, POSITIONS))
    distances = drawn(device, dtype, HEADS, POSITIONS)
    qkv = drawn(device, dtype, slots * BEAMS, 3 * width)
    memory, bias = drawn(device, dtype, sum(MEMORIES), 2 * width), torch.zeros(sum(MEMORIES)).to(device)
    for length in (1, POSITIONS - 1):
        state.length.fill_(length)
        for table, pad, added in ((positions, 7, None), (None, None, distances)):
            kernels.embed(state, words, 2.0, table, 0, pad)
            own = kernels.self_attention(qkv, state.keys[0], state.values[0], state, HEADS, 0.1, added)
        state.open[1] = 0
    for splits in (1, 2, 8):
        kernels.cross_attention(own, memory, bias, state, HEADS, 0.1, splits)


def run_search(device: str, dtype: torch.dtype, beams: int, vocabulary: int, **changes: Any) -> None:
    """The choice of a given token, of the first new one, and of the last one."""
    search = Search(POSITIONS, 1, (2,), 0, beams=beams, returned=1, given=2, length_penalty=0.6, **changes)
    settings = SearchTensors.of(search, vocabulary, POSITIONS, torch.device(device))
    state = opened(device, torch.float32, 3, beams, 1, search.given)
    logits = drawn(device, dtype, 3 * beams, vocabulary)
    logits[:, 2] = 5.0  # some hypotheses end early
    for length in (1, 2, POSITIONS - 1):
        state.length.fill_(length)
        kernels.choose(logits, state, settings)
        state.open[1] = 0
    assert not bool(state.open.any()), "every sentence has reached its longest length"


def opened(device: str, dtype: torch.dtype, slots: int, beams: int, width: int, given: int) -> State:
    """The state of sentences that begin."""
    state = State.empty(slots, beams, POSITIONS, 1, width, dtype, torch.device(device))
    rows = torch.tensor(MEMORIES[:slots])
    tokens = torch.ones(slots, given, dtype=torch.long, device=device)
    state.fill(torch.arange(slots, device=device), (rows.cumsum(0) - rows).to(device), rows.int().to(device), tokens)
    return state


def drawn(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=dtype).to(device)


if __name__ == "__main__":
    main()
