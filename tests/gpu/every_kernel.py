"""Run every decoding kernel at ragged shapes, for a memory checker:

compute-sanitizer python -m tests.gpu.every_kernel
"""

import itertools
from typing import Any

import torch

from l0drop.decoding.gpu import kernels
from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.search import Search, Timestamps

SLOTS, BEAMS, POSITIONS, WIDTH, HEADS, VOCABULARY = 5, 5, 32, 120, 3, 5000
SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"no_repeat_ngram": 2, "repetition_penalty": 1.2},
    {"timestamps": Timestamps(first=4000, none=3999, eos=2)},
)
"""Some kernels run for some settings only."""


def main(device: str = "cuda") -> None:
    torch.manual_seed(0)
    for dtype, changes in itertools.product((torch.bfloat16, torch.float32), SEARCHES):
        state = State.empty(SLOTS, BEAMS, POSITIONS, 1, WIDTH, dtype, torch.device(device))
        rows = torch.tensor([1, 64, 65, 300, 129], device=device)
        every = torch.arange(SLOTS, device=device)
        given = torch.ones(SLOTS, 2, dtype=torch.long, device=device)
        state.fill(every, rows.cumsum(0) - rows, rows.int(), given)
        memory = torch.randn(int(rows.sum()), 2 * WIDTH, device=device, dtype=dtype)
        bias = torch.zeros(len(memory), device=device)
        weight = torch.randn(VOCABULARY, WIDTH, device=device, dtype=dtype)
        positions = torch.randn(POSITIONS, WIDTH, device=device, dtype=dtype)
        distances = torch.randn(HEADS, POSITIONS, device=device, dtype=dtype)
        search = Search(POSITIONS, 1, (2,), 0, beams=BEAMS, returned=2, given=2, length_penalty=0.6, **changes)
        settings = SearchTensors.of(search, VOCABULARY, POSITIONS, torch.device(device))
        for step in range(POSITIONS):
            if step == 12:
                state.open[1] = 0
            x = kernels.embed(state, weight, 2.0, positions, 0, (None, 7)[step % 2])
            kernels.add_norm(x, x.float(), weight[0], None, 1e-5, True)  # as in T5
            x, _ = kernels.add_norm(x, x, weight[0], weight[1], 1e-5, step % 2 == 1)
            qkv = torch.cat([x, x, x], 1)
            added = (None, distances)[step % 2]
            own = kernels.self_attention(qkv, state.keys[0], state.values[0], state, HEADS, 0.1, added)
            cross = kernels.cross_attention(own, memory, bias, state, HEADS, 0.1, (1, 2, 8)[step % 3])
            kernels.choose(cross @ weight.T, state, settings)
        assert not bool(state.open.any()), "every sentence has reached its longest length"


if __name__ == "__main__":
    main()
