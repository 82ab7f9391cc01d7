"""All kernels of a step, as its operations; imported on a GPU only."""

from l0drop.decoding.gpu.attention import add_norm, cross_attention, embed, self_attention
from l0drop.decoding.gpu.selection import choose

__all__ = ["add_norm", "choose", "cross_attention", "embed", "self_attention"]
