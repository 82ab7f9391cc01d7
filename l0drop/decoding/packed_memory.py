"""Attention to a memory whose keys and values oneDNN packed for this CPU.

A step multiplies the few queries of every sentence by keys and values that no step changes. oneDNN is fastest if it may
choose their layout once, but torch offers that for linear layers and convolutions only, not for batched products. So
both products are convolutions of width 1 with one group for each head of each sentence: keys and values are the
weights, queries are the positions, and the memory's bias is the bias of the first convolution.

Shapes: B sentences, k beams, R = B·k rows, H heads, G = B·H groups, S memory rows, D head width.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0drop.decoding.attention import attend

PACK_FROM = 128
"""The memory rows of a sentence from which this pays; with fewer, packing costs as much as it saves."""

PACK_FROM_ALL = 1024
"""The memory rows of all sentences from which this pays: a single sentence of 400 rows takes longer with it."""

ROWS = 16
"""Memories are padded to a multiple of this number of rows, because oneDNN computes so many outputs at once. It also
keeps a kernel of 10 to 60 KiB for each of the last 1,024 shapes, so fewer shapes take less memory."""

MAX_TIME_RATIO = 0.9
"""Used if it takes at most this share of the time of batched products."""


@dataclass(frozen=True, eq=False)
class PackedMemory:
    """Keys [G·S, D, 1, 1], values [G·D, S, 1, 1], both in oneDNN's layout, and bias [B, S]; S is a multiple of ROWS."""

    keys: Tensor
    values: Tensor
    bias: Tensor
    heads: int
    beams: int
    """The queries of a sentence in most steps: oneDNN packs for them. Other numbers work too."""

    @staticmethod
    def of(keys_BHSD: Tensor, values_BHDS: Tensor, bias_BS: Tensor, beams: int) -> "PackedMemory":
        """Pack keys and values for queries that include the scale of the scores."""
        heads, rows, width = keys_BHSD.shape[1:]
        missing = -rows % ROWS
        keys = F.pad(keys_BHSD, (0, 0, 0, missing)).reshape(-1, width)
        values = F.pad(values_BHDS, (0, missing)).reshape(-1, rows + missing)
        groups = len(keys_BHSD) * heads
        return PackedMemory(
            _packed(keys, groups, beams),
            _packed(values, groups, beams),
            F.pad(bias_BS, (0, missing), value=-torch.inf),
            heads,
            beams,
        )

    @property
    def nbytes(self) -> int:
        """Size of keys and values."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.keys, self.values))

    def attend(self, query_RW: Tensor) -> Tensor:
        """[R, H·D], the attention of the beams of all sentences."""
        sentences, rows = self.bias.shape
        groups, beams = sentences * self.heads, len(query_RW) // sentences
        query_kBW = query_RW.unflatten(0, (sentences, beams)).transpose(0, 1)
        bias_G = self.bias[:, None].expand(-1, self.heads, -1).flatten()
        scores = _product(query_kBW.to(self.keys.dtype).reshape(beams, -1), self.keys, bias_G, groups)
        weights = scores.view(beams, groups, rows).softmax(-1).view(beams, -1)
        sums_kBW = _product(weights, self.values, None, groups).view(beams, sentences, -1)
        return sums_kBW.transpose(0, 1).to(query_RW.dtype).reshape(query_RW.shape)

    def keep(self, sentences: Tensor, rows: int) -> "PackedMemory":
        """The memory of these sentences alone, with its first `rows` rows."""
        shape_BH = (len(self.bias), self.heads)
        width = self.keys.shape[1]
        keys_BHSD = self.keys.to_dense().view(*shape_BH, -1, width)
        values_BHDS = self.values.to_dense().view(*shape_BH, width, -1)
        return PackedMemory.of(
            keys_BHSD[:, :, :rows].index_select(0, sentences),
            values_BHDS[..., :rows].index_select(0, sentences),
            self.bias[sentences, :rows],
            self.beams,
        )


def _packed(weight_OI: Tensor, groups: int, positions: int) -> Tensor:
    """The weight of a convolution of width 1 in oneDNN's layout; every group has O / groups outputs."""
    input_shape = [1, groups * weight_OI.shape[1], positions, 1]
    weight = weight_OI[:, :, None, None].contiguous()
    return torch.ops.mkldnn._reorder_convolution_weight.default(weight, [0, 0], [1, 1], [1, 1], groups, input_shape)


def _product(x_kC: Tensor, packed: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """[k, O], every group of the inputs times the group's own weights, plus the bias."""
    positions = x_kC[None, :, None].permute(0, 3, 1, 2)  # [1, C, k, 1], with the channels of a position side by side
    found = torch.ops.mkldnn._convolution_pointwise.default(
        positions, packed, bias, [0, 0], [1, 1], [1, 1], groups, "none", [], ""
    )
    return found.permute(0, 2, 3, 1).reshape(len(x_kC), -1)


# --- the choice --------------------------------------------------------------------------------------------------


@functools.lru_cache
def is_faster(threads: int) -> bool:
    """Whether attention to a packed memory is clearly faster than batched products on this machine, in float32."""
    if not torch.backends.mkldnn.is_available():
        return False
    sentences, heads, beams, rows, width = 8, 8, 4, 256, 64
    keys, values = (torch.randn(sentences, heads, rows, width) for _ in range(2))
    query = torch.randn(sentences * beams, heads * width)
    bias = torch.zeros(sentences, rows)
    with torch.inference_mode():
        packed = PackedMemory.of(keys, values.transpose(2, 3), bias, beams)
        query_BHkD = query.view(sentences, beams, heads, width).transpose(1, 2)
        plain = functools.partial(attend, query_BHkD, keys, values, bias[:, None, None], 1.0)
        return _seconds(lambda: packed.attend(query)) < MAX_TIME_RATIO * _seconds(plain)


def _seconds(run: Callable[[], Tensor]) -> float:
    """The least CPU time of several runs, because the machine may be busy."""
    times = []
    for _ in range(10):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)
