"""Keys and values of memory and target in one decoding run, stored once per sentence for all its beams.

Both are Hugging Face cache classes, so that Hugging Face's decoders can read and write them.

Shapes: B sentences, k beams, R = B·k rows, G groups of rows, H heads, S keys, D head width.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, CacheLayerMixin

from l0drop.decoding.attention import Ancestry
from l0drop.decoding.packed_memory import PackedMemory

PACK_EVERY = 4
PACK_AT = 0.9
"""Every PACK_EVERY steps, slots without descendants are removed if at most this share of slots has any."""


class _CacheLayer(CacheLayerMixin):
    """Base class: a layer that is filled only by `update` and needs no mask."""

    is_compileable = False
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class MemoryLayer(_CacheLayer):
    """Keys and values of the memory, [B, H, S, D]; written in the first step, then read by every beam.

    Values may be transposed, in blocks: [B, n, H, D, s], see `attend`. `packed` replaces both if it is set.
    """

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.packed: PackedMemory | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the first step has been computed."""
        return self.packed is not None or self.keys is not None

    @property
    def nbytes(self) -> int:
        """Size of keys and values."""
        if self.packed is not None:
            return self.packed.nbytes
        return sum(tensor.nbytes for tensor in (self.keys, self.values) if torch.is_tensor(tensor))

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states.contiguous(), value_states.contiguous()
        return self.keys, self.values

    def keep(self, sentences: Tensor, rows: int) -> None:
        """Keep only these sentences, and the first `rows` memory rows."""
        if self.packed is not None:
            self.packed = self.packed.keep(sentences, rows)
            return
        self.keys = self.keys[:, :, :rows].index_select(0, sentences)
        if self.values.dim() == 4:
            values = self.values[:, :, :rows]
        else:
            blocks = -(-rows // self.values.shape[-1])
            values = self.values[:, :blocks] if blocks > 1 else self.values[:, :1, :, :, :rows]
        self.values = values.index_select(0, sentences)


class PrefixLayer(_CacheLayer):
    """Keys and values of the target so far, in buffers [G, H, slots, D] with `filled` used slots.

    `length` counts target positions. A group is a sentence; each of its beams writes into a separate slot.
    """

    def __init__(self, groups: int, slots: int) -> None:
        super().__init__()
        self.groups, self.slots, self.filled, self.length = groups, slots, 0, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.slots

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        rows, heads, new, width = key_states.shape
        assert new == 1, "one position at a time"
        if self.keys is None:
            shape = (self.groups, heads, self.slots, width)
            self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
        assert self.values is not None
        beams = rows // self.groups
        end = self.filled + beams
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[:, :, self.filled : end] = states.view(self.groups, beams, heads, width).transpose(1, 2)
        self.filled = end
        self.length += 1
        return self.keys[:, :, :end], self.values[:, :, :end]

    def pack(self, order_GS: Tensor) -> None:
        """Keep only these slots, in this order."""
        assert self.keys is not None
        assert self.values is not None
        left = order_GS.shape[1]
        groups, heads, slots, width = self.keys.shape
        first_GH1 = torch.arange(0, groups * heads * slots, slots, device=order_GS.device).view(groups, heads, 1)
        rows = (first_GH1 + order_GS[:, None]).flatten()  # copying whole rows is faster than gathering elements
        for buffer in (self.keys, self.values):
            buffer[:, :, :left] = buffer.view(-1, width).index_select(0, rows).view(groups, heads, left, width)
        self.filled = left

    def keep(self, groups: Tensor) -> None:
        """Keep only these groups."""
        assert self.keys is not None
        assert self.values is not None
        shape = (len(groups), *self.keys.shape[1:])
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(shape)
            new[:, :, : self.filled] = old[:, :, : self.filled].index_select(0, groups)
            setattr(self, name, new)
        self.groups = len(groups)


class DecoderCache(EncoderDecoderCache):
    """Both caches of a run: the memory's, for B sentences, and the target's, for G groups of k beams.

    Groups are sentences (G = B), or independent rows (k = 1). When beams are reordered, keys and values stay in their
    slots; `descend` records the slots that each beam descends from. Slots without descendants are removed from time to
    time: beams soon share all but their last tokens.
    """

    def __init__(
        self, layers: int, groups: int, beams: int, positions: int, device: torch.device | str, shared: int = 1
    ) -> None:
        slots = shared + beams * (positions - shared)  # all beams share the first positions
        self.shared = shared
        self.prefix = [PrefixLayer(groups, slots) for _ in range(layers)]
        self.memory = [MemoryLayer() for _ in range(layers)]
        self.beams = beams
        self._bias = torch.full((groups, beams, slots), -torch.inf, device=device)
        self._position = torch.zeros(groups, slots, dtype=torch.long, device=device)
        super().__init__(Cache(layers=[*self.prefix]), Cache(layers=[*self.memory]))

    def step(self, rows: int) -> Ancestry | None:
        """The ancestry for the next step with this number of rows: one per group at shared positions, then k."""
        start, length = self.prefix[0].filled, self.prefix[0].length
        new = rows // self.prefix[0].groups
        if self.beams == 1:
            return None
        assert new == (self.beams if length >= self.shared else 1)
        self._position[:, start : start + new] = length
        fresh = self._bias[:, :, start : start + new]
        if new == 1:
            fresh.fill_(0)
            return None
        fresh.diagonal(dim1=1, dim2=2).fill_(0)
        end = start + new
        return Ancestry(self._bias[:, None, :, :end], self._position[:, :end])

    def descend(self, parents_Gk: Tensor) -> None:
        """Beam j of a sentence continues its beam parents[j]."""
        if self.beams == 1:
            return
        filled = self.prefix[0].filled
        bias = self._bias[:, :, :filled]
        bias.copy_(bias.gather(1, parents_Gk[:, :, None].expand(-1, -1, filled)))
        if self.prefix[0].length % PACK_EVERY == 0:
            self._pack()

    def _pack(self) -> None:
        """Remove slots without descendants, if there are many."""
        filled = self.prefix[0].filled
        live_GS = (self._bias[:, :, :filled] == 0).any(1)
        left = int(live_GS.sum(1).max())
        if left > PACK_AT * filled:
            return
        order_GS = (~live_GS).byte().argsort(dim=1, stable=True)[:, :left]
        packed = self._bias[:, :, :filled].gather(2, order_GS[:, None].expand(-1, self.beams, -1))
        self._bias[:, :, :left] = packed
        self._bias[:, :, left:filled] = -torch.inf
        self._position[:, :left] = self._position.gather(1, order_GS)
        for layer in self.prefix:
            layer.pack(order_GS)

    def keep(self, sentences: Tensor, groups: Tensor, memory_rows: int) -> None:
        """Keep only these sentences, their groups, and the first `memory_rows` memory rows."""
        for prefix, memory in zip(self.prefix, self.memory, strict=True):
            prefix.keep(groups)
            memory.keep(sentences, memory_rows)
        self._bias, self._position = self._bias[groups], self._position[groups]

    @property
    def memory_bytes(self) -> int:
        """Size of the keys and values of the memory."""
        return sum(layer.nbytes for layer in self.memory)
