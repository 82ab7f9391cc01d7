"""Each kernel against the function of its name in plain torch."""

import copy
import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from l0drop.decoding.gpu import plain
from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.search import Search, Timestamps

triton = pytest.importorskip("triton", reason="needs triton")

from l0drop.decoding.gpu import attention, kernels, selection  # noqa: E402
from tests.decoding.gpu import compile_kernels  # noqa: E402
from tests.gpu import every_kernel  # noqa: E402

ROOT = Path(__file__).parents[3]
FILES = [ROOT / "l0drop" / "decoding" / "gpu" / name for name in ("attention.py", "selection.py")]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Relative errors, against plain torch in float64 on the same inputs."""
NO_BFLOAT16 = "Triton's interpreter multiplies matrices in bfloat16 wrongly; runs on a GPU"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(one, other, dtype):
    error = (one.double() - other.double()).norm() / other.double().norm()
    assert error < TOLERANCE[dtype], float(error)


def random_state(slots, beams, positions, width, dtype, length=None, layers=1):
    state = State.empty(slots, beams, positions, layers, width, dtype, DEVICE)
    state.length.copy_(torch.randint(1, positions, (slots,)) if length is None else length)
    state.open.fill_(1)
    state.ancestors.random_(0, beams)
    state.current.random_(0, 50)
    state.keys.normal_()
    state.values.normal_()
    return state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("offset", "pad"), [(0, None), (2, None), (2, 1)])
def test_embed(dtype, offset, pad):
    state = random_state(3, 2, 8, 24, dtype)
    state.current[1] = 1
    weight = torch.randn(50, 24, device=DEVICE).to(dtype)
    positions = torch.randn(16, 24, device=DEVICE).to(dtype)
    for table in (positions, None):
        ours = kernels.embed(state, weight, 3.0, table, offset, pad)
        wide = None if table is None else table.double()
        close(ours, plain.embed(state, weight.double(), 3.0, wide, offset, pad), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("width", [24, 64, 600])
def test_add_norm(dtype, rms, width):
    x, y = torch.randn(2, 7, width, device=DEVICE).to(dtype)
    weight, bias = torch.randn(2, width, device=DEVICE).to(dtype)
    for other in (y, None):
        for shift in (None, bias) if not rms else (None,):
            given = (x, other, weight, shift)
            wide = (None if tensor is None else tensor.double() for tensor in given)
            ours = kernels.add_norm(*given, 1e-5, rms)
            for one, two in zip(ours, plain.add_norm(*wide, 1e-5, rms), strict=True):
                close(one, two, dtype)


@pytest.mark.parametrize("wide_x", [False, True])
def test_add_norm_in_two_types(wide_x):
    """T5 in float16: what a layer adds is in float32, then the sum is too; the norm is in float16."""
    x, y = 300 * torch.randn(2, 7, 48, device=DEVICE)
    x = x if wide_x else x.half()
    y = y if not wide_x else y.half()
    weight = torch.randn(48, device=DEVICE).half()
    ours, theirs = kernels.add_norm(x, y, weight, None, 1e-5, True), plain.add_norm(x, y, weight, None, 1e-5, True)
    exact = plain.add_norm(x.double(), y.double(), weight.double(), None, 1e-5, True)
    for one, two, three, dtype in zip(ours, theirs, exact, (torch.float32, torch.float16), strict=True):
        assert one.dtype == two.dtype == dtype
        close(one, three, dtype)
        close(two, three, dtype)


def related(state, alone):
    """Let the hypotheses of each slot share their ancestors up to the last `alone` positions."""
    for slot, length in enumerate(state.length.tolist()):
        end = max(0, length - 1 - alone)
        state.ancestors[:, slot, :, :end] = state.ancestors[:, slot, :1, :end].clone()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("beams", "heads", "width", "positions"), [(1, 2, 32, 32), (4, 3, 24, 64), (5, 2, 128, 96), (4, 2, 32, 640)]
)
@pytest.mark.parametrize("has_distances", [False, True])
@pytest.mark.parametrize("alone", [0, 9, 1000])
def test_self_attention(dtype, beams, heads, width, positions, has_distances, alone):
    """From 256 positions on, in several splits. Hypotheses share all ancestors, all but the last nine, or none."""
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip(NO_BFLOAT16)
    state = random_state(4, beams, positions, width, dtype)
    state.length[0], state.length[1] = 1, positions
    related(state, alone)
    twin = replace(state, keys=state.keys.double(), values=state.values.double())
    qkv = torch.randn(4 * beams, 3 * width, device=DEVICE).to(dtype)
    distances = torch.randn(heads, positions, device=DEVICE).to(dtype) if has_distances else None
    ours = kernels.self_attention(qkv, state.keys[0], state.values[0], state, heads, 0.3, distances)
    wide = None if distances is None else distances.double()
    expected = plain.self_attention(qkv.double(), twin.keys[0], twin.values[0], twin, heads, 0.3, wide)
    close(ours, expected, dtype)
    assert torch.equal(state.keys.double(), twin.keys)
    assert torch.equal(state.values.double(), twin.values)


@pytest.mark.parametrize("positions", [64, 512])
def test_self_attention_reads_only_ancestors(positions):
    """What no hypothesis descends from may be anything: slots are reused."""
    state = random_state(3, 4, positions, 16, torch.float32)
    related(state, 5)
    side = (state.length.long() - 1) % 2
    live = torch.zeros(3, 4, positions, dtype=torch.bool, device=DEVICE)
    for slot, length in enumerate(state.length.tolist()):
        for beam in range(4):
            ancestors = state.ancestors[side[slot], slot, beam, : length - 1].long()
            live[slot, ancestors, torch.arange(length - 1, device=DEVICE)] = True
    live = live.view(12, positions)
    state.keys[0][~live], state.values[0][~live] = torch.nan, torch.nan
    qkv = torch.randn(12, 48, device=DEVICE)
    assert kernels.self_attention(qkv, state.keys[0], state.values[0], state, 2, 0.3, None).isfinite().all()


def ragged_memory(state, lengths, width, dtype, masked):
    state.rows.copy_(torch.tensor(lengths))
    state.offset.copy_(torch.tensor([0, *lengths[:-1]]).cumsum(0))
    memory = torch.randn(sum(lengths) + 5, 2 * width, device=DEVICE).to(dtype)
    bias = torch.randn(len(memory), device=DEVICE)
    if masked:  # all but one row of every sentence
        bias = torch.full_like(bias, -torch.inf)
        bias[state.offset + state.rows - 1] = 0.5
    memory[sum(lengths) :] = torch.nan  # must not be read
    return memory, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("beams", "heads", "width"), [(1, 2, 16), (4, 2, 128), (5, 3, 72)])
def test_cross_attention(dtype, splits, masked, beams, heads, width):
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip(NO_BFLOAT16)
    lengths = [1, 64, 65, 300, 129]
    state = random_state(len(lengths), beams, 4, width, dtype)
    memory, bias = ragged_memory(state, lengths, width, dtype, masked)
    query = torch.randn(len(lengths) * beams, width, device=DEVICE).to(dtype)
    ours = kernels.cross_attention(query, memory, bias, state, heads, 0.4, splits)
    close(ours, plain.cross_attention(query.double(), memory.double(), bias.double(), state, heads, 0.4, splits), dtype)


def test_closed_slots_are_not_touched():
    state = random_state(2, 2, 8, 16, torch.float32)
    state.open[1] = 0
    before = copy.deepcopy(state)
    settings = SearchTensors.of(Search(8, 1, (2,), 0, beams=2), 40, 8, DEVICE)
    kernels.self_attention(torch.randn(4, 48, device=DEVICE), state.keys[0], state.values[0], state, 2, 1.0, None)
    kernels.choose(torch.randn(4, 40, device=DEVICE), state, settings)
    for name in vars(state):
        one, two = getattr(state, name), getattr(before, name)
        if name in ("tokens", "ancestors", "done_tokens"):
            one, two = one[:, 1], two[:, 1]
        elif name in ("keys", "values"):
            one, two = one[:, 2:], two[:, 2:]
        elif name == "current":
            one, two = one[2:], two[2:]
        else:
            one, two = one[1:], two[1:]
        assert torch.equal(one, two), name


SEARCHES = [
    {},
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 1.5},
    {"length_penalty": -1.0},
    {"penalty_style": "gnmt", "length_penalty": 0.6},
    {"penalty_style": "gnmt", "length_penalty": -0.6},
    {"min_length": 4},
    {"forced_first": 7, "forced_last": (2,)},
    {"banned": (5, 6, 7), "suppressed": (8,), "banned_first": (9, 2)},
    {"eos": (2, 3)},
    {"eos": ()},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2, "banned": (5, 6), "forced_last": (2,)},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "no_repeat_ngram": 3, "suppressed": (8,)},
    {"renormalize": True, "min_length": 3, "forced_last": (2,)},
    {"renormalize": True, "repetition_penalty": 1.3},
    {"timestamps": Timestamps(first=40, none=39, eos=2, latest_start=3)},
    {"timestamps": Timestamps(first=30, none=29, eos=25), "eos": (25,), "suppressed": (8,)},
    {"timestamps": Timestamps(first=40, none=39, eos=2), "no_repeat_ngram": 2, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize(("beams", "given"), [(1, 3), (2, 1), pytest.param(5, 3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("changes", SEARCHES, ids=str)
def test_choose(beams, given, changes):
    """A whole search on random logits, step by step; slots begin at different times, so their lengths differ."""
    slots, vocabulary, positions = 4, 60, 32
    settings = {"eos": (2,), "max_length": 9 + given, "min_length": 0, **changes}
    settings["min_length"] += given - 1
    search = Search(start=1, pad=0, beams=beams, returned=min(2, beams), given=given, **settings)
    if given > 1 and search.forced_first is not None:
        pytest.skip("a forced first token follows one given token")
    state = State.empty(slots, beams, positions, 1, 4, torch.float32, DEVICE)
    tensors = SearchTensors.of(search, vocabulary, positions, DEVICE)
    tokens = torch.randint(4, 20, (slots, given), device=DEVICE)
    generator = torch.Generator().manual_seed(beams)
    ended = set()
    for step in range(16):
        if step in (0, 2):
            half = torch.tensor([0, 2] if step == 0 else [1, 3], device=DEVICE)
            state.fill(half, state.offset[half], state.rows[half], tokens[half])
        logits = 2 * torch.randn(slots * beams, vocabulary, generator=generator)
        logits[:, 2] += 2.0
        if step == 0:  # identical hypotheses have identical logits
            logits = logits[::beams].repeat_interleave(beams, 0)
        twin = copy.deepcopy(state)
        kernels.choose(logits.to(DEVICE), state, tensors)
        plain.choose(logits.to(DEVICE), twin, tensors)
        same(state, twin, given)
        ended |= set((state.open == 0).nonzero().flatten().tolist())
    assert len(ended) == slots


def same(state, twin, given):
    for name in ("length", "open", "error", "done"):
        assert torch.equal(getattr(state, name), getattr(twin, name)), name
    assert torch.equal(state.done_length * state.done, twin.done_length * twin.done)
    started = state.length > given
    if not bool(started.any()):
        return
    assert torch.allclose(state.scores[started], twin.scores[started], rtol=1e-6, atol=1e-5)
    is_done = state.done.bool()
    assert torch.allclose(state.done_scores[is_done], twin.done_scores[is_done], rtol=1e-6, atol=1e-5)
    every = torch.arange(state.slots, device=DEVICE)
    side = (state.length.long() - 1) % 2
    alive = state.scores > -1e8
    for name, reach in (("tokens", state.length), ("ancestors", state.length - 1)):
        one, two = (getattr(x, name)[side, every] for x in (state, twin))
        before = torch.arange(one.shape[2], device=DEVICE) < reach[:, None, None]
        assert torch.equal((one * before)[alive], (two * before)[alive]), name
    one, two = (x.finished(every, 0)[0] for x in (state, twin))
    assert torch.equal(one[is_done], two[is_done])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_scores_are_marked(value):
    state = State.empty(2, 2, 8, 1, 4, torch.float32, DEVICE)
    search = Search(8, 1, (2,), 0, beams=2)
    both = torch.arange(2, device=DEVICE)
    state.fill(both, state.offset[both], state.rows[both], torch.ones(2, 1, dtype=torch.long, device=DEVICE))
    logits = torch.randn(4, 40, device=DEVICE)
    logits[2, 5] = value
    kernels.choose(logits, state, SearchTensors.of(search, 40, 8, DEVICE))
    assert state.error.tolist() == [0, 1]


@pytest.mark.parametrize("changes", [{"no_repeat_ngram": 2}, {"repetition_penalty": 1.5}], ids=str)
def test_repetitions_in_a_long_output(changes):
    """Longer than what the kernel reads at once."""
    beams, vocabulary, length, positions = 2, 60, 200, 256
    search = Search(positions, 1, (2,), 0, beams=beams, given=length, **changes)
    state = State.empty(2, beams, positions, 1, 4, torch.float32, DEVICE)
    both = torch.arange(2, device=DEVICE)
    tokens = torch.randint(3, vocabulary, (2, length), device=DEVICE)
    tokens[:, 20] = tokens[:, -1]  # in the first block; what followed it there must not follow again
    state.fill(both, state.offset[both], state.rows[both], tokens)
    state.length.fill_(length)
    logits = torch.randn(2, vocabulary, device=DEVICE)
    logits.scatter_(1, tokens[:, 21:22], 9.0)
    twin, free = copy.deepcopy(state), copy.deepcopy(state)
    for advance, of, settings in (
        (kernels.choose, state, search),
        (plain.choose, twin, search),
        (plain.choose, free, Search(positions, 1, (2,), 0, beams=beams, given=length)),
    ):
        advance(logits.repeat_interleave(beams, 0), of, SearchTensors.of(settings, vocabulary, positions, DEVICE))
    same(state, twin, length)
    assert not torch.equal(state.scores, free.scores)


def test_large_vocabulary():
    """More than one block, the last of them not full."""
    search = Search(8, 1, (2,), 0, beams=4, early_stopping=True)
    state = State.empty(2, 4, 32, 1, 4, torch.float32, DEVICE)
    both = torch.arange(2, device=DEVICE)
    state.fill(both, state.offset[both], state.rows[both], torch.ones(2, 1, dtype=torch.long, device=DEVICE))
    settings = SearchTensors.of(search, 9000, 32, DEVICE)
    for step in range(3):
        logits = torch.randn(8, 9000, device=DEVICE)
        if step == 0:
            logits = logits[::4].repeat_interleave(4, 0)
        twin = copy.deepcopy(state)
        kernels.choose(logits, state, settings)
        plain.choose(logits, twin, settings)
        same(state, twin, 1)


class Recorded:
    """A kernel that notes the constants of its launches."""

    def __init__(self, kernel):
        self.kernel, self.launches = kernel, []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.launches.append(constants)
            return self.kernel[grid](*arguments, **constants)

        return launch

    def values(self, *names):
        return {tuple(constants[name] for name in names) for constants in self.launches}


@pytest.mark.slow
def test_the_program_for_memory_checkers(monkeypatch):
    """It runs on a GPU; here, that it launches every kernel in every variant."""
    recorded = {kernel.fn.__name__: (Recorded(kernel), constants) for kernel, constants in compile_kernels.KERNELS}
    for name, (kernel, _) in recorded.items():
        monkeypatch.setattr(attention if hasattr(attention, name) else selection, name, kernel)
    every_kernel.main(str(DEVICE))
    for name, (kernel, constants) in recorded.items():
        flags = [name for name, value in constants.items() if isinstance(value, bool)]
        assert kernel.values(*flags) == {*itertools.product((False, True), repeat=len(flags))}, name
    other = {
        "_embed": ("COUNT", {0, every_kernel.POSITIONS}),
        "_add_norm": ("num_warps", {2, 4}),
        "_cross_attention": ("S", {1, 2, 8}),
        "_join": ("S", {2, 8}),
        "_best_of_block": ("num_warps", {4, 8}),
        "_advance": ("num_warps", {1, 4}),
    }
    for name, (constant, expected) in other.items():
        assert recorded[name][0].values(constant) == {(value,) for value in expected}, name
    assert sum(len(kernel.launches) for kernel, _ in recorded.values()) < 200, "memory checkers are slow"


def test_kernels_compile_without_a_gpu():
    """The interpreter checks less than the compiler."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.decoding.gpu.compile_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    defined = re.findall(
        r"@triton.jit\ndef (\w+)\(  # type: ignore\[no-untyped-def\]\n", "".join(map(Path.read_text, FILES))
    )
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == sorted(defined)
