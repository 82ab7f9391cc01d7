"""Cross-attention of a decoded output, from modules that return attention weights.

Shapes: K memory rows, T output tokens, L decoder layers, H heads.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from l0drop.core.memory import Memory
from l0drop.models.adopt import adopt_parameters
from l0drop.models.families import family_of
from l0drop.models.modeling import L0DropModel


def eager_twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same parameters in modules that return attention weights, which sdpa does not."""
    base: type[PreTrainedModel] = model.base_class if isinstance(model, L0DropModel) else type(model)
    parts = family_of(base).parts
    config: Any = model.config.to_base() if isinstance(model, L0DropModel) else copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    return adopt_parameters(model, base if parts is None else type(base.__name__, (parts, base), {}), config).eval()


@torch.no_grad()
def cross_attention(twin: PreTrainedModel, memory: Memory, ids_T: Tensor) -> Tensor:
    """[L, H, T, K], the attention to the memory when each token of `ids_T` after the first was chosen."""
    family = family_of(type(twin))
    steps = max(1, len(ids_T) - 1)  # of an empty output, the modules still need one
    bias = memory.bias.to(memory.states.dtype)
    if family.full_bias:
        bias = bias.expand(-1, -1, steps, -1)
    output = twin(
        encoder_outputs=family.encoder_output(last_hidden_state=memory.states),
        decoder_input_ids=ids_T[None, :steps],
        output_attentions=True,
        use_cache=False,
        **{family.bias_argument: bias},
    )
    return torch.cat(output.cross_attentions)[:, :, : len(ids_T) - 1]
