"""The operations of a step in plain torch: slow, for any device and dtype. The reference for the kernels.

Shapes as in `state.py`; D model width, H heads, K rows of all memories.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.search import Hypotheses, beam_step


def embed(
    state: State, weight_VD: Tensor, scale: float, positions_PD: Tensor | None, offset: int, pad: int | None
) -> Tensor:
    """[R, D], weight[token] · scale + positions[position + offset]; the token `pad` has the position `pad`."""
    x_RD = F.embedding(state.current, weight_VD) * scale
    if positions_PD is None:
        return x_RD
    # a closed slot may be one position behind the last one
    position_R = (state.length.long() - 1 + offset).clamp_max(len(positions_PD) - 1).repeat_interleave(state.beams)
    if pad is not None:
        position_R = torch.where(state.current == pad, pad, position_R)
    return x_RD + positions_PD[position_R].to(x_RD.dtype)


def add_norm(
    x_RD: Tensor, y_RD: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, rms: bool
) -> tuple[Tensor, Tensor]:
    """x + y, and its layer norm (or root mean square norm) in the type of the weight."""
    total = x_RD if y_RD is None else x_RD + y_RD
    if not rms:
        return total, F.layer_norm(total, weight.shape, weight, bias, eps)
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    return total, weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(weight.dtype)


def self_attention(
    qkv_R3I: Tensor, keys: Tensor, values: Tensor, state: State, heads: int, scale: float, distances: Tensor | None
) -> Tensor:
    """[R, I]: the new position attends to its hypothesis. Stores its key and value in `keys` and `values` [R, T, I].

    distances [H, T]: added to the scores by distance, or None.
    """
    slots, beams = state.slots, state.beams
    q, k, v = qkv_R3I.unflatten(1, (3, -1)).unbind(1)
    position_R = (state.length.long() - 1).repeat_interleave(beams)
    row_R = torch.arange(slots * beams, device=q.device)
    keys[row_R, position_R], values[row_R, position_R] = k, v
    longest = int(position_R.max()) + 1
    time_T = torch.arange(longest, device=q.device)
    side_B = (state.length.long() - 1) % 2
    ancestor_RT = state.ancestors[side_B, torch.arange(slots, device=q.device)].flatten(0, 1)[:, :longest].long()
    from_RT = torch.where(time_T == position_R[:, None], row_R[:, None], row_R[:, None] // beams * beams + ancestor_RT)
    keys_RTHd, values_RTHd = (cache[from_RT, time_T].unflatten(2, (heads, -1)) for cache in (keys, values))
    scores_RHT = torch.einsum("rhd,rthd->rht", q.unflatten(1, (heads, -1)), keys_RTHd) * scale
    distance_RT = position_R[:, None] - time_T
    if distances is not None:
        scores_RHT = scores_RHT + distances[:, distance_RT.clamp_min(0)].transpose(0, 1)
    scores_RHT = scores_RHT.masked_fill((distance_RT < 0)[:, None], -torch.inf)
    return torch.einsum("rht,rthd->rhd", scores_RHT.softmax(-1), values_RTHd).flatten(1)


def cross_attention(
    query_RI: Tensor, memory_K2I: Tensor, bias_K: Tensor, state: State, heads: int, scale: float, splits: int
) -> Tensor:
    """[R, I]: the beams of a slot attend to its rows of the memory: keys and values, side by side."""
    out_RI = torch.zeros_like(query_RI)
    query_BkHd, out_BkI = (
        query_RI.unflatten(1, (heads, -1)).unflatten(0, (-1, state.beams)),
        out_RI.unflatten(0, (-1, state.beams)),
    )
    for slot in state.open.nonzero().flatten().tolist():
        first, rows = int(state.offset[slot]), int(state.rows[slot])
        keys, values = memory_K2I[first : first + rows].unflatten(1, (2, heads, -1)).unbind(1)
        scores = torch.einsum("khd,nhd->khn", query_BkHd[slot], keys) * scale + bias_K[first : first + rows]
        out_BkI[slot] = torch.einsum("khn,nhd->khd", scores.softmax(-1).to(values.dtype), values).flatten(1)
    return out_RI


def choose(logits_RV: Tensor, state: State, settings: SearchTensors) -> None:
    """Advance every open slot by one token, with the search of `search.py`, one sentence at a time."""
    search, beams = settings.search, state.beams
    for slot in state.open.nonzero().flatten().tolist():
        length = int(state.length[slot])
        side, done_side = (length - 1) % 2, int(state.done_side[slot])
        tokens_kT = state.tokens[side, slot]
        if length < int(state.given[slot]):
            chosen, parents = tokens_kT[:, length].long(), torch.arange(beams, device=tokens_kT.device)
        else:
            old = Hypotheses(
                tokens_kT[None, :, : search.max_length].long(),
                state.scores[slot][None],
                state.done_tokens[done_side, slot][None, :, : search.max_length].long(),
                state.done_scores[slot][None],
                state.done_length[slot][None].long(),
                state.done[slot][None].bool(),
                torch.ones(1, dtype=torch.bool, device=tokens_kT.device),
            )
            new, parents_1k = beam_step(logits_RV[slot * beams : (slot + 1) * beams], old, length, search)
            chosen, parents = new.tokens[0, :, length], parents_1k[0]
            state.error[slot] |= int(not bool((new.scores < torch.inf).all()))
            state.scores[slot] = new.scores[0]
            state.done_tokens[done_side, slot, :, : search.max_length] = new.done_tokens[0].int()
            state.done_scores[slot] = new.done_scores[0]
            state.done_length[slot], state.done[slot] = new.done_length[0].int(), new.done[0].int()
            state.open[slot] = int(new.open[0])
        state.tokens[1 - side, slot, :, :length] = tokens_kT[parents, :length]
        state.tokens[1 - side, slot, :, length] = chosen.int()
        state.ancestors[1 - side, slot, :, : length - 1] = state.ancestors[side, slot][parents, : length - 1]
        state.ancestors[1 - side, slot, :, length - 1] = parents.int()
        state.current[slot * beams : (slot + 1) * beams] = chosen
        state.length[slot] = length + 1
