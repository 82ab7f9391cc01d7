"""The meaning of a dropped encoding for the decoder, in each gating. Defined in this file only.

`compress` builds the short memory, `full` the dense one. A decoder that adds `bias` to its attention scores computes
the same on both.

| gating | the decoder attends to                                       | short memory                             |
|--------|--------------------------------------------------------------|------------------------------------------|
| zero   | encoding × gate; closed rows stay as zero vectors            | kept rows + one zero row, bias log count |
| mask   | encoding × gate; closed rows are masked out                  | kept rows                                |
| weight | encodings; attention weight × gate, renormalised             | kept rows, bias log gate                 |
| mean   | g·x + (1 - g)·m, with m the mean of what the gates take away | kept rows + one row m, bias log count    |

With `mask` and `weight` a sentence whose gates are all closed keeps one position, with gate 1; see `keep_one`.

`pool` builds a short memory without gates: each row is the mean of a group of encodings, with bias log size.

Shapes: B sentences, N source positions, K memory rows, D model width. Masks are True on real tokens.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from l0drop.core import hard_concrete
from l0drop.core.gates import Gates, unreadable
from l0drop.core.values import WrongKindError

Gating = Literal["zero", "mask", "weight", "mean"]
GATINGS: tuple[str, ...] = get_args(Gating)


@dataclass(frozen=True, eq=False)
class Memory:
    """The rows that the decoder attends to.

    states: [B, K, D], in source order.
    bias: [B, 1, 1, K], added to the attention scores; -inf on padding; float32, or float64 with float64 states.
    index: [B, K], the source position of each row; -1 for the shared row and padding. A row that is the mean of several
        encodings has the position of the first.
    count: [B], the number of real tokens without a row of their own: those that are dropped, which with `zero` and
        `mean` the shared row represents, and those that belong to another token's row.
    """

    states: Tensor
    bias: Tensor
    index: Tensor
    count: Tensor

    @property
    def rows(self) -> Tensor:
        """[B], the number of rows of each sentence, up to its last visible one."""
        seen_BK = self.bias[:, 0, 0] > -torch.inf
        number_K = torch.arange(1, seen_BK.shape[1] + 1, device=seen_BK.device)
        return (seen_BK * number_K).amax(1)

    def with_rows(self, mask_BN: Tensor) -> Tensor:
        """[B, N], True on the source positions of rows, for tokens [B, N]."""
        here_BN = torch.zeros(len(mask_BN), mask_BN.shape[1] + 1, dtype=torch.bool, device=mask_BN.device)
        return here_BN.scatter(1, self.index + 1, True)[:, 1:]  # -1 goes to a column that is cut off

    def check(self, encodings: Tensor, mask_BN: Tensor) -> None:
        """Raise ValueError unless this is what a shortener may make of these encodings.

        Every row that the decoder sees has a source position, of a real token and in source order, and `count` is the
        number of the other real tokens.
        """
        (B, K), D = self.index.shape, encodings.shape[2]
        shapes = {"states": (B, K, D), "bias": (B, 1, 1, K), "index": (len(encodings), K), "count": (B,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"Memory.{name}: expected shape {shape}, got {tuple(getattr(self, name).shape)}")
        if unreadable(mask_BN):
            return  # checked by the eager run of the same shortener
        seen_BK, index_BK = self.bias[:, 0, 0] > -torch.inf, self.index
        is_real_BK = (index_BK >= 0) & (index_BK < mask_BN.shape[1])
        is_real_BK = is_real_BK & mask_BN.gather(1, torch.where(is_real_BK, index_BK, 0))
        before_BK = torch.nn.functional.pad(index_BK.cummax(1).values, (1, 0), value=-1)[:, :-1]
        found = (
            torch.where(seen_BK, is_real_BK & (index_BK > before_BK), index_BK == -1).all(),
            (seen_BK.sum(1) + self.count == mask_BN.sum(1)).all(),
            seen_BK.any(1).all(),
        )
        in_order, complete, some = torch.stack(found).tolist()
        if not some:
            raise ValueError("Memory.bias: a sentence has no row; attention over nothing is undefined")
        if not in_order:
            raise ValueError(
                "Memory.index: expected the position of a real token for each row, in source order, and -1 on padding"
            )
        if not complete:
            raise ValueError("Memory.count: expected the number of real tokens less the number of rows")


def has_shared_row(gating: str) -> bool:
    """Whether one row of the short memory represents all dropped encodings: the zero row, or with `mean` the row m."""
    return gating in ("zero", "mean")


def compress(encodings: Tensor, gates: Gates, mask: Tensor, gating: Gating = "zero") -> Memory:
    """The short memory: kept rows in source order, padded to the longest; with `zero` and `mean` the shared row first.

    The shared row is there even for a sentence that dropped nothing: its bias is then log 0 = -inf.
    """
    mask_BN = _checked(encodings, gates, mask, gating)
    values_BN = keep_one(gates, mask_BN, gating).values
    most = int((values_BN != 0).sum(1).max())
    return short_memory(encodings, values_BN, mask_BN, gating, most)


def short_memory(encodings: Tensor, values_BN: Tensor, mask_BN: Tensor, gating: str, most: int) -> Memory:
    """`compress` for gates that were checked, without reading any value. `most`: kept rows of the longest memory."""
    kept_BN = values_BN != 0
    kept_B = kept_BN.sum(1)
    # argsort, because it can be stable: torch.topk does not keep the order of equal elements
    index_BK = kept_BN.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    real_BK = torch.arange(most, device=mask_BN.device) < kept_B[:, None]
    gate_BK = values_BN.gather(1, index_BK)
    states_BKD = encodings.gather(1, index_BK[..., None].expand(-1, -1, encodings.shape[-1]))
    shared_B1D = _shared_row(encodings, values_BN, mask_BN, gating)
    # where, not a product: padding may hold anything, NaN included
    states_BKD = torch.where(real_BK[..., None], _gated(states_BKD, gate_BK, shared_B1D, gating), 0)
    bias_BK = _row_bias(gate_BK, real_BK, gating, states_BKD.dtype)
    index_BK = index_BK.masked_fill(~real_BK, -1)
    count_B = mask_BN.sum(1) - kept_B
    if has_shared_row(gating):
        states_BKD = torch.cat([shared_B1D, states_BKD], 1)
        bias_BK = torch.cat([count_B[:, None].to(bias_BK.dtype).log(), bias_BK], 1)
        index_BK = torch.nn.functional.pad(index_BK, (1, 0), value=-1)
    return Memory(states_BKD, bias_BK[:, None, None], index_BK, count_B)


def full(encodings: Tensor, gates: Gates, mask: Tensor, gating: Gating = "zero") -> Memory:
    """The dense memory: all positions, gated. Differentiable; training uses it."""
    mask_BN = _checked(encodings, gates, mask, gating)
    return dense_memory(encodings, keep_one(gates, mask_BN, gating).values, mask_BN, gating)


def dense_memory(encodings: Tensor, values_BN: Tensor, mask_BN: Tensor, gating: str) -> Memory:
    """`full` for gates that were checked, without reading any value."""
    kept_BN = values_BN != 0
    seen_BN = mask_BN if has_shared_row(gating) else kept_BN
    states_BND = _gated(encodings, values_BN, _shared_row(encodings, values_BN, mask_BN, gating), gating)
    bias_BN = _row_bias(values_BN, seen_BN, gating, states_BND.dtype)
    index_BN = torch.arange(mask_BN.shape[1], device=mask_BN.device).expand_as(mask_BN).masked_fill(~seen_BN, -1)
    return Memory(states_BND, bias_BN[:, None, None], index_BN, mask_BN.sum(1) - kept_BN.sum(1))


def pool(encodings: Tensor, rows: Tensor, mask: Tensor) -> Memory:
    """The memory whose rows are means of groups of encodings, with bias log size. Differentiable in the encodings.

    Attention over it is attention over the full memory in which every encoding is replaced by the mean of its group.

    rows: [B, N], the row that each real token belongs to, numbered 0, 1, 2, ... by their first tokens.
    """
    _check_kinds(encodings, mask)
    mask_BN = mask.bool()
    check_mask(mask_BN)
    if rows.shape != mask_BN.shape or rows.is_floating_point():
        raise ValueError(
            f"rows: expected whole numbers of shape {tuple(mask_BN.shape)}, got {rows.dtype} of shape "
            f"{tuple(rows.shape)}"
        )
    row_BN = rows.long().masked_fill(~mask_BN, -1)
    (B, N), most = mask_BN.shape, int(row_BN.max()) + 1
    highest_BN = row_BN.cummax(1).values
    new_BN = highest_BN - torch.nn.functional.pad(highest_BN, (1, 0), value=-1)[:, :-1]
    if not bool(((new_BN <= 1) & ((row_BN >= 0) == mask_BN)).all()):
        raise ValueError(
            "rows: expected the row of each real token, numbered from 0 in the order of their first tokens"
        )
    target_BN = row_BN.masked_fill(~mask_BN, most)  # padding, which may hold NaN, goes to a row that is cut off
    x_BND = hard_concrete.wide(encodings)
    sum_BKD = x_BND.new_zeros(B, most + 1, x_BND.shape[2]).scatter_add(1, target_BN[..., None].expand_as(x_BND), x_BND)
    size_BK = x_BND.new_zeros(B, most + 1).scatter_add(1, target_BN, x_BND.new_ones(B, N))[:, :most]
    states_BKD = sum_BKD[:, :most] / size_BK.clamp_min(1)[..., None]
    position_BN = torch.arange(N, device=row_BN.device).expand(B, N)
    first_BK = row_BN.new_full((B, most + 1), N).scatter_reduce(1, target_BN, position_BN, "amin")[:, :most]
    index_BK = first_BK.masked_fill(size_BK == 0, -1)
    count_B = mask_BN.sum(1) - (size_BK > 0).sum(1)
    return Memory(states_BKD.to(encodings.dtype), size_BK.log()[:, None, None], index_BK, count_B)


def keep_one(gates: Gates, mask_BN: Tensor, gating: Gating) -> Gates:
    """With `mask` and `weight`, give a sentence whose gates are all closed one position with gate 1.

    This is the first position of largest log α, or the first real token if there is no log α. `zero` and
    `mean` need no such rule: the shared row alone is a valid memory.
    """
    if has_shared_row(gating):
        return gates
    score_BN = torch.zeros_like(gates.values) if gates.log_alpha is None else gates.log_alpha
    best_B1 = score_BN.masked_fill(~mask_BN, -torch.inf).argmax(1, keepdim=True)
    # if every score is -inf, argmax may return padding
    best_B1 = torch.where(mask_BN.gather(1, best_B1), best_B1, mask_BN.int().argmax(1, keepdim=True))
    all_closed_B1 = (gates.values == 0).all(1, keepdim=True)
    forced_BN = torch.zeros_like(mask_BN).scatter(1, best_B1, all_closed_B1)
    return gates._replace(values=torch.where(forced_BN, 1.0, gates.values))


def check_mask(mask_BN: Tensor) -> None:
    """Raise ValueError if a sentence has no real token: attention over nothing is undefined."""
    if unreadable(mask_BN):
        return
    is_real_B = mask_BN.any(1)
    if not bool(is_real_B.all()):
        empty = (~is_real_B).nonzero().flatten().tolist()
        raise ValueError(
            f"attention_mask: sentence {empty[0]} of the batch has no real token; drop it or give it an EOS"
        )


def real_tokens(attention_mask: Tensor | None, like_BN: Tensor) -> Tensor:
    """[B, N], True on real tokens."""
    if attention_mask is None:
        return torch.ones(like_BN.shape[:2], dtype=torch.bool, device=like_BN.device)
    if attention_mask.shape != like_BN.shape[:2]:
        raise ValueError(
            f"attention_mask: expected shape {tuple(like_BN.shape[:2])}, one entry per source token, "
            f"got {tuple(attention_mask.shape)}"
        )
    mask_BN = attention_mask.bool()
    check_mask(mask_BN)
    return mask_BN


def _check_kinds(encodings: Tensor, mask: Tensor) -> None:
    for name, value in (("encodings", encodings), ("mask", mask)):
        if not isinstance(value, Tensor):
            raise WrongKindError(f"{name}: expected Tensor, got {type(value).__name__}")
    if not mask.numel():
        raise ValueError(f"mask: expected at least one sentence and position, got shape {tuple(mask.shape)}")
    if mask.shape != encodings.shape[:2]:
        raise ValueError(f"mask: expected shape {tuple(encodings.shape[:2])}, got {tuple(mask.shape)}")


def _checked(encodings: Tensor, gates: Gates, mask: Tensor, gating: str) -> Tensor:
    if gating not in GATINGS:
        raise ValueError(f"gating: expected one of {', '.join(GATINGS)}, got {gating!r}")
    if not isinstance(gates, Gates):
        raise WrongKindError(f"gates: expected Gates, got {type(gates).__name__}")
    _check_kinds(encodings, mask)
    mask_BN = mask.bool()
    gates.check(mask_BN)
    check_mask(mask_BN)
    return mask_BN


def _shared_row(encodings: Tensor, gate_BN: Tensor, mask_BN: Tensor, gating: str) -> Tensor:
    """[B, 1, D], the vector that a closed gate leaves in place of an encoding: 0, or with `mean` the row m.

    m = Σ (1 - g) x / Σ (1 - g) over the real tokens, and 0 where all gates are 1.
    """
    if gating != "mean":
        return torch.zeros_like(encodings[:, :1])
    wide = torch.promote_types(encodings.dtype, torch.float32)
    taken_BN = torch.where(mask_BN, 1 - gate_BN.to(wide), 0)
    # where, not a product with 0: padding may hold anything, NaN included
    encodings_BND = torch.where(mask_BN[..., None], encodings.to(wide), 0)
    total_B1 = taken_BN.sum(1, keepdim=True)
    share_BN = taken_BN / torch.where(total_B1 > 0, total_B1, 1)
    return (share_BN[:, None] @ encodings_BND).to(encodings.dtype)


def _gated(states: Tensor, gate: Tensor, shared_B1D: Tensor, gating: str) -> Tensor:
    """The rows that the decoder attends to, before dropped ones are masked out or joined."""
    if gating == "weight":
        return states
    gate = gate[..., None].to(states.dtype)
    return states * gate + shared_B1D * (1 - gate) if gating == "mean" else states * gate


def _row_bias(gate: Tensor, seen: Tensor, gating: str, dtype: torch.dtype) -> Tensor:
    bias_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if gating == "weight":
        # log of a safe number, then masked: the gradient of log 0 would be NaN
        tiny = torch.finfo(bias_dtype).tiny
        bias = torch.where(seen, gate, 1).to(bias_dtype).clamp_min(tiny).log()
    else:
        bias = torch.zeros_like(gate, dtype=bias_dtype)
    return bias.masked_fill(~seen, -torch.inf)
