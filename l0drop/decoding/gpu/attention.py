"""Kernels of a decoder layer in Triton: embedding, norm with residual, attention to the target and to the memory.

Each does the same as the function of its name in `plain.py`. They read positions, memory rows and open slots from the
state, so a captured step never changes. Products and sums are in float32; results are rounded once.

Attention to the memory: one program reads the keys and values of one sentence and head once, for all its beams. Few
sentences are split over the keys, and a second kernel joins the parts. Programs end at a sentence's last row, so
padding is neither stored nor read.

Attention to the target: likewise, with the keys of each hypothesis where its ancestors wrote them. Hypotheses of a
sentence soon share all but their last tokens; what they share is read once.

Shapes as in `state.py`; H heads, d head width, K rows of all memories, S splits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from l0drop.decoding.gpu.state import State, split_count

BEAM_TILE = 16
"""Rows of the smallest matrix product; a sentence has at most so many beams."""

KEYS = 64
"""Memory rows that a program reads at a time."""

TIMES = 32
"""Target positions that a program reads at a time."""


def embed(
    state: State, weight_VD: Tensor, scale: float, positions_PD: Tensor | None, offset: int, pad: int | None
) -> Tensor:
    """[R, D], embeddings of the last tokens."""
    width = weight_VD.shape[1]
    out_RD = torch.empty(len(state.current), width, dtype=weight_VD.dtype, device=weight_VD.device)
    _embed[(len(out_RD),)](
        out_RD, state.current, state.length, weight_VD, positions_PD, scale, offset, -1 if pad is None else pad,
        BEAMS=state.beams, D=width, COUNT=0 if positions_PD is None else len(positions_PD),
        N=triton.next_power_of_2(width),
    )  # fmt: skip
    return out_RD


@triton.jit
def _embed(  # type: ignore[no-untyped-def]
    OUT, CURRENT, LENGTH, WEIGHT, POSITIONS, scale, offset, pad,
    BEAMS: tl.constexpr, D: tl.constexpr, COUNT: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, N)
    inside = column < D
    token = tl.load(CURRENT + row)
    x = tl.load(WEIGHT + token * D + column, mask=inside, other=0.0).to(tl.float32) * scale
    if COUNT > 0:
        # a closed slot may be one position behind the last one
        position = tl.minimum(tl.load(LENGTH + row // BEAMS).to(tl.int64) - 1 + offset, COUNT - 1)
        position = tl.where(token == pad, token, position)
        x += tl.load(POSITIONS + position * D + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + row.to(tl.int64) * D + column, x.to(OUT.dtype.element_ty), mask=inside)


def add_norm(
    x_RD: Tensor, y_RD: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, rms: bool
) -> tuple[Tensor, Tensor]:
    """x + y, and its norm in the type of the weight."""
    rows, width = x_RD.shape
    normed = torch.empty_like(x_RD, dtype=weight.dtype)
    # T5 in float16 has some weights in float32, and from them on the sums are too
    total = x_RD if y_RD is None else torch.empty_like(x_RD, dtype=torch.promote_types(x_RD.dtype, y_RD.dtype))
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        total, normed, x_RD, y_RD, weight, bias, eps,
        D=width, ADDS=y_RD is not None, BIASED=bias is not None, RMS=rms, N=block, num_warps=2 if block <= 512 else 4,
    )  # fmt: skip
    return total, normed


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    TOTAL, NORMED, X, Y, WEIGHT, BIAS, eps,
    D: tl.constexpr, ADDS: tl.constexpr, BIASED: tl.constexpr, RMS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, N)
    inside = column < D
    start = tl.program_id(0).to(tl.int64) * D
    x = tl.load(X + start + column, mask=inside, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(Y + start + column, mask=inside, other=0.0).to(tl.float32)).to(
            TOTAL.dtype.element_ty
        )
        tl.store(TOTAL + start + column, x, mask=inside)
    wide = x.to(tl.float32)
    if not RMS:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / D, 0.0)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
    wide *= tl.load(WEIGHT + column, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        wide += tl.load(BIAS + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(NORMED + start + column, wide.to(NORMED.dtype.element_ty), mask=inside)


# --- attention to the target -------------------------------------------------------------------------------------


def self_attention(
    qkv_R3I: Tensor, keys: Tensor, values: Tensor, state: State, heads: int, scale: float, distances: Tensor | None
) -> Tensor:
    """[R, I]; stores the new key and value."""
    rows, width = len(qkv_R3I), qkv_R3I.shape[1] // 3
    positions = keys.shape[1]
    splits = split_count(state.slots * heads, positions)
    out_RI = torch.empty(rows, width, dtype=qkv_R3I.dtype, device=qkv_R3I.device)
    sizes, parts, heads_of_parts = _parts(out_RI, state, heads, splits)
    _self_attention[(state.slots, heads, splits)](
        out_RI, parts, heads_of_parts, qkv_R3I, keys, values, state.ancestors, state.length, state.open, distances,
        scale,
        **sizes, SLOTS=state.slots, T=positions, HAS_DISTANCES=distances is not None, TILE=BEAM_TILE, BLOCK=TIMES,
        EXACT=qkv_R3I.dtype == torch.float32, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        _join[(rows, heads)](out_RI, parts, heads_of_parts, state.open, **sizes, num_warps=1)
    return out_RI


@triton.jit
def _self_attention(  # type: ignore[no-untyped-def]
    OUT, PARTS, HEADS_OF_PARTS, QKV, KEYS_, VALUES_, ANCESTORS, LENGTH, OPEN, DISTANCES, scale,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, S: tl.constexpr, N: tl.constexpr, SLOTS: tl.constexpr,
    T: tl.constexpr, HAS_DISTANCES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    if tl.load(OPEN + slot) != 0:
        beam = tl.arange(0, TILE)
        column = tl.arange(0, N)
        inside = column < D
        of_beam = beam < BEAMS
        row = slot * BEAMS + beam
        mask = of_beam[:, None] & inside[None, :]
        own = row[:, None] * (3 * WIDTH) + head * D + column[None, :]
        q = tl.load(QKV + own, mask=mask, other=0.0)
        position = tl.load(LENGTH + slot) - 1
        top = tl.full((TILE,), float("-inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        sums = tl.zeros((TILE, N), tl.float32)
        if split == 0:  # the new position itself
            k = tl.load(QKV + own + WIDTH, mask=mask, other=0.0)
            v = tl.load(QKV + own + 2 * WIDTH, mask=mask, other=0.0)
            here = (row * T + position)[:, None] * WIDTH + head * D + column[None, :]
            tl.store(KEYS_ + here, k, mask=mask)
            tl.store(VALUES_ + here, v, mask=mask)
            top = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
            if HAS_DISTANCES:
                top += tl.load(DISTANCES + head * T).to(tl.float32)
            total += 1.0
            sums = v.to(tl.float32)
        size = tl.cdiv(tl.cdiv(position, S), BLOCK) * BLOCK
        first = split * size
        last = tl.minimum(position, first + size)
        side = position % 2
        ancestors = ANCESTORS + (side * SLOTS + slot) * BEAMS * T
        cached = slot * (BEAMS * T * WIDTH) + head * D  # positions inside a slot are 32 bits wide
        for start in range(first, last, BLOCK):
            time = start + tl.arange(0, BLOCK)
            before = time < last
            # the beam that wrote each position of each hypothesis
            writer = tl.load(
                ancestors + beam[:, None] * T + time[None, :], mask=of_beam[:, None] & before[None, :], other=-1
            )
            for other in range(BEAMS):
                # what hypothesis `other` reads and none before it: once, for all that share it
                wanted = tl.load(ancestors + other * T + time, mask=before, other=-2)
                shares = writer == wanted[None, :]
                known = tl.max((shares & (beam < other)[:, None]).to(tl.int32), 0)
                new = before & (known == 0)
                if tl.max(new.to(tl.int32), 0) != 0:
                    there = (wanted * T + time)[:, None] * WIDTH + column[None, :]
                    both = new[:, None] & inside[None, :]
                    key = tl.load(KEYS_ + cached + there, mask=both, other=0.0)
                    value = tl.load(VALUES_ + cached + there, mask=both, other=0.0)
                    score = tl.dot(q, tl.trans(key), input_precision="ieee") if EXACT else tl.dot(q, tl.trans(key))
                    score *= scale
                    if HAS_DISTANCES:
                        distance = tl.load(DISTANCES + head * T + position - time, mask=new, other=0.0)
                        score += distance.to(tl.float32)[None, :]
                    score = tl.where(shares & new[None, :], score, float("-inf"))
                    higher = tl.maximum(top, tl.max(score, 1))
                    # a hypothesis may have none of these positions
                    safe = tl.where(higher == float("-inf"), 0.0, higher)
                    weight = tl.exp(score - safe[:, None])
                    shrunk = tl.exp(top - safe)
                    if EXACT:
                        sums = sums * shrunk[:, None] + tl.dot(weight, value, input_precision="ieee")
                    else:
                        sums = sums * shrunk[:, None] + tl.dot(weight.to(value.dtype), value)
                    total = total * shrunk + tl.sum(weight, 1)
                    top = higher
        if S == 1:
            where = row[:, None] * WIDTH + head * D + column[None, :]
            tl.store(OUT + where, (sums / total[:, None]).to(OUT.dtype.element_ty), mask=mask)
        else:
            part = ((slot * tl.num_programs(1) + head) * S + split) * BEAMS + beam
            tl.store(PARTS + part[:, None] * D + column[None, :], sums, mask=mask)
            tl.store(HEADS_OF_PARTS + part * 2, top, mask=of_beam)
            tl.store(HEADS_OF_PARTS + part * 2 + 1, total, mask=of_beam)


# --- attention to the memory -------------------------------------------------------------------------------------


def cross_attention(
    query_RI: Tensor, memory_K2I: Tensor, bias_K: Tensor, state: State, heads: int, scale: float, splits: int
) -> Tensor:
    """[R, I]; rows of closed slots are not written."""
    out_RI = torch.empty_like(query_RI)
    sizes, parts, heads_of_parts = _parts(out_RI, state, heads, splits)
    _cross_attention[(state.slots, heads, splits)](
        out_RI, parts, heads_of_parts, query_RI, memory_K2I, bias_K, state.offset, state.rows, state.open, scale,
        **sizes, TILE=BEAM_TILE, BLOCK=KEYS, EXACT=query_RI.dtype == torch.float32, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join[(len(out_RI), heads)](out_RI, parts, heads_of_parts, state.open, **sizes, num_warps=1)
    return out_RI


@triton.jit
def _cross_attention(  # type: ignore[no-untyped-def]
    OUT, PARTS, HEADS_OF_PARTS, QUERY, MEMORY, BIAS, OFFSET, ROWS, OPEN, scale,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, S: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    if tl.load(OPEN + slot) != 0:
        beam = tl.arange(0, TILE)
        column = tl.arange(0, N)
        inside = column < D
        of_beam = beam < BEAMS
        row = slot * BEAMS + beam
        where = row[:, None] * WIDTH + head * D + column[None, :]
        mask = of_beam[:, None] & inside[None, :]
        q = tl.load(QUERY + where, mask=mask, other=0.0)
        rows = tl.load(ROWS + slot)
        size = tl.cdiv(tl.cdiv(rows, S), BLOCK) * BLOCK
        first = split * size
        last = tl.minimum(rows, first + size)
        offset = tl.load(OFFSET + slot)
        top = tl.full((TILE,), float("-inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        sums = tl.zeros((TILE, N), tl.float32)
        for start in range(first, last, BLOCK):
            index = start + tl.arange(0, BLOCK)
            there = index < last
            address = (offset + index)[:, None] * (2 * WIDTH) + head * D + column[None, :]
            both = there[:, None] & inside[None, :]
            key = tl.load(MEMORY + address, mask=both, other=0.0)
            bias = tl.load(BIAS + offset + index, mask=there, other=float("-inf")).to(tl.float32)
            score = tl.dot(q, tl.trans(key), input_precision="ieee") if EXACT else tl.dot(q, tl.trans(key))
            score = score * scale + bias[None, :]
            higher = tl.maximum(top, tl.max(score, 1))
            # rows of the memory may all be masked so far
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp(score - safe[:, None])
            shrunk = tl.exp(top - safe)
            value = tl.load(MEMORY + address + WIDTH, mask=both, other=0.0)
            if EXACT:
                sums = sums * shrunk[:, None] + tl.dot(weight, value, input_precision="ieee")
            else:
                sums = sums * shrunk[:, None] + tl.dot(weight.to(value.dtype), value)
            total = total * shrunk + tl.sum(weight, 1)
            top = higher
        if S == 1:
            tl.store(OUT + where, (sums / total[:, None]).to(OUT.dtype.element_ty), mask=mask)
        else:
            part = ((slot * tl.num_programs(1) + head) * S + split) * BEAMS + beam
            tl.store(PARTS + part[:, None] * D + column[None, :], sums, mask=mask)
            tl.store(HEADS_OF_PARTS + part * 2, top, mask=of_beam)
            tl.store(HEADS_OF_PARTS + part * 2 + 1, total, mask=of_beam)


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    OUT, PARTS, HEADS_OF_PARTS, OPEN,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, S: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Join the splits of one row and head."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = row // BEAMS
    if tl.load(OPEN + slot) != 0:
        column = tl.arange(0, N)
        inside = column < D
        part = ((slot * tl.num_programs(1) + head) * S + tl.arange(0, S)) * BEAMS + row % BEAMS
        top = tl.load(HEADS_OF_PARTS + part * 2)
        total = tl.load(HEADS_OF_PARTS + part * 2 + 1)
        share = tl.exp(top - tl.max(top, 0))
        sums = tl.load(PARTS + part[:, None] * D + column[None, :], mask=inside[None, :], other=0.0)
        joined = tl.sum(sums * share[:, None], 0) / tl.sum(total * share, 0)
        tl.store(OUT + row * WIDTH + head * D + column, joined.to(OUT.dtype.element_ty), mask=inside)


def _parts(out_RI: Tensor, state: State, heads: int, splits: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Sizes that kernels of attention share; buffers for the sums of the splits, their highest scores and totals."""
    width = out_RI.shape[1]
    head = width // heads
    sizes = {"BEAMS": state.beams, "WIDTH": width, "D": head, "S": splits, "N": max(16, triton.next_power_of_2(head))}
    shape = (state.slots, heads, splits, state.beams) if splits > 1 else (0,)
    sums = torch.empty(*shape, head, dtype=torch.float32, device=out_RI.device)
    return sizes, sums, torch.empty(*shape, 2, dtype=torch.float32, device=out_RI.device)
