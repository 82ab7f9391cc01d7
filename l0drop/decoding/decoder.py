"""A model's decoder for the engine: Hugging Face's embeddings and forward, with our layers, attention, caches and
output layer.

The decoder holds the model's parameters in new modules. Layer types that `stack.py` does not support stay Hugging
Face's, with the attention of `attention.py`. The output layer is separate: the model's constant addition to its logits
becomes the bias of that layer, which costs nothing, instead of another pass over the vocabulary.

Shapes: B sentences, R rows, K memory rows, D width, V vocabulary.
"""

import copy
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from l0drop.decoding.attention import NAME, use_ancestry
from l0drop.decoding.caches import DecoderCache
from l0drop.decoding.linear import LinearKind, Linears, make_linear
from l0drop.decoding.stack import Stack, is_supported
from l0drop.models.adopt import adopt_parameters
from l0drop.models.families import family_of
from l0drop.models.modeling import L0DropModel


class Decoder:
    """One step of a model's decoder, from the last tokens to logits."""

    def __init__(self, model: Any, kind: LinearKind) -> None:
        gated = isinstance(model, L0DropModel)
        config = model.config.to_base() if gated else copy.deepcopy(model.config)
        config._attn_implementation = NAME
        base = model.base_class if gated else type(model)
        self.bias_argument = family_of(base).bias_argument
        self.modules: PreTrainedModel = adopt_parameters(model, base, config).eval()
        self.head = _take_head(self.modules)
        made = make_linear(kind, self.head.weight, self.head.bias)
        self.head = self.head if made is None else made
        decoder: Any = self.modules.get_decoder()
        layers = decoder.block if hasattr(decoder, "block") else decoder.layers
        self.layers = len(layers)
        if is_supported(layers):
            packed: Stack | Linears = Stack(layers, kind)
            decoder.layers = nn.ModuleList([packed])  # type: ignore[list-item]
        else:
            packed = Linears(decoder, kind)
            packed.install(decoder)
        self.copied_bytes = packed.copied_bytes + getattr(self.head, "copied_bytes", 0)
        """Size of the packed copies of weights."""

    def __call__(self, tokens_R1: Tensor, states_BKD: Tensor, bias_B11K: Tensor, cache: DecoderCache) -> Tensor:
        """[R, V]; the rows of a sentence are its beams."""
        return self.head(self.read(tokens_R1, states_BKD, bias_B11K, cache))

    def read(self, tokens_R1: Tensor, states_BKD: Tensor, bias_B11K: Tensor, cache: DecoderCache) -> Tensor:
        """[R, D], the states after these tokens."""
        with use_ancestry(cache.step(len(tokens_R1))):
            output = self.modules(
                decoder_input_ids=tokens_R1,
                encoder_outputs=BaseModelOutput(last_hidden_state=states_BKD),  # type: ignore[arg-type]
                **{self.bias_argument: bias_B11K},
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
            )
        return output.logits[:, -1]


class _Head(nn.Module):
    """An output layer whose bias includes the model's constant addition to its logits."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight_VD, bias_V

    def forward(self, states_RD: Tensor) -> Tensor:
        return F.linear(states_RD, self.weight, self.bias)


def _take_head(model: Any) -> Any:
    """Remove the output layer from a model, which then returns the states instead of logits."""
    layer = model.get_output_embeddings()
    (name,) = [name for name, module in model.named_children() if module is layer]
    head = _Head(*head_of(model))
    model._modules[name] = nn.Identity()
    added = model._buffers.get("final_logits_bias")
    if added is not None:
        model._buffers["final_logits_bias"] = added.new_zeros(1, 1)
    return head


def head_of(model: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a model's output layer, with the model's constant addition to its logits in the bias."""
    layer = model.get_output_embeddings()
    bias, added = layer.bias, model._buffers.get("final_logits_bias")
    if added is not None and (bias is not None or bool((added != 0).any())):
        bias = added[0] if bias is None else bias + added[0]
    return layer.weight, bias
