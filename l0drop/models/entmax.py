"""Sparse cross-attention: 1.5-entmax in place of softmax, the comparison of Figure 2.

Entmax sets single attention weights to 0, each decoder step its own; no encoding is dropped, and every one is needed in
decoding. `with_entmax(model)` returns an `Entmax<Base>` model to fine-tune. Its cross-attention asks transformers'
AttentionInterface for another function than the rest of the model does; no forward is copied, no hook left.

    model = with_entmax(AutoModelForSeq2SeqLM.from_pretrained("runs/base/model"))
    model.save_pretrained("runs/base-entmax/model")

With the baseline's tokenizer/ copied beside model/, a recipe with `init: runs/base-entmax` and no l0drop trains it.

Shapes: B sentences, H heads, T target positions, N source positions, D width of a head.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    LEDForConditionalGeneration,
    PreTrainedModel,
)

from l0drop.core import hard_concrete
from l0drop.models.adopt import adopt_parameters
from l0drop.models.families import FAMILIES, family_of
from l0drop.models.modeling import L0DropModel

IMPLEMENTATION = "l0drop_entmax15"
CROSS_ATTENTION = ("encoder_attn", "EncDecAttention")
"""What the families call the attention from decoder to encoder."""


def entmax_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention with p = argmax ⟨p, scores⟩ + H(p) over the simplex, H Tsallis' entropy of α = 1.5 (softmax: α = 1).

    query [B, H, T, D], key and value [B, H, N, D]; the mask is True on real tokens, or added to the scores. Where our
    engine decodes, the query has k rows for each sentence, its beams, of one position each.
    """
    beams = len(query) // len(key)
    if beams > 1:
        query = query.unflatten(0, (-1, beams)).squeeze(3).transpose(1, 2)  # beams are positions on the same keys
        position_bias = None if position_bias is None else position_bias[:, :, -1:]
    scores_BHTN = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if position_bias is not None:
        scores_BHTN = scores_BHTN + position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores_BHTN = scores_BHTN.masked_fill(~attention_mask, -torch.inf)
    elif attention_mask is not None:
        scores_BHTN = scores_BHTN + attention_mask
    weights_BHTN = _entmax15()(hard_concrete.wide(scores_BHTN), dim=-1).to(query.dtype)
    weights_BHTN = nn.functional.dropout(weights_BHTN, p=dropout, training=module.training)
    output_BTHD = (weights_BHTN @ value).transpose(1, 2)
    if beams > 1:
        output_BTHD = output_BTHD.flatten(0, 1)[:, None]
    return output_BTHD.contiguous(), weights_BHTN


def _entmax15() -> Any:
    try:
        from entmax import entmax15
    except ImportError as error:
        raise ValueError("entmax: sparse attention needs the `entmax` package: pip install l0drop[entmax]") from error
    return entmax15


AttentionInterface.register(IMPLEMENTATION, entmax_attention)


class EntmaxModel(PreTrainedModel):
    """What an `Entmax<Base>` class adds to its base. Comes first in its bases; never used alone."""

    base_class: type[PreTrainedModel]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, L0DropModel):
            raise ValueError(
                "model: its cross-attention is entmax, but short memories are exact with softmax alone; "
                "sparsify the model it was made from"
            )

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for name, module in self.get_decoder().named_modules():
            if name.endswith(CROSS_ATTENTION):
                # a config of its own, so that the rest of the model keeps what it was loaded with, and may change it
                own: Any = copy.copy(module.config)
                own._attn_implementation_internal = IMPLEMENTATION
                module.config = own


_classes: dict[type[PreTrainedModel], type[EntmaxModel]] = {}


def entmax_class(base: type[PreTrainedModel]) -> type[EntmaxModel]:
    """`Entmax<Base>`, known to the Auto classes under the model type `entmax_<base>`."""
    if base in _classes:
        return _classes[base]
    family = family_of(base)
    if issubclass(base, LEDForConditionalGeneration):
        raise ValueError("model: LED does not ask the AttentionInterface, so entmax cannot be put into it")
    base_config: Any = base.config_class
    names = {"model_type": f"entmax_{base_config.model_type}", "__module__": __name__}
    config_class: Any = type(f"Entmax{base_config.__name__}", (base_config,), names)
    model_class: Any = type(
        f"Entmax{base.__name__}",
        (EntmaxModel, base),
        {"base_class": base, "config_class": config_class, "__module__": __name__},
    )
    for made in (config_class, model_class):
        globals()[made.__name__] = made  # so that it can be pickled
    if base is family.base:
        AutoConfig.register(config_class.model_type, config_class)
        AutoModelForSeq2SeqLM.register(config_class, model_class)
    _classes[base] = model_class
    return model_class


def with_entmax(model: PreTrainedModel) -> EntmaxModel:
    """An `Entmax<Base>` model on the model's own Parameter objects: training one trains both.

    Weights trained with softmax give other outputs with entmax: fine-tune before comparing.
    """
    if isinstance(model, L0DropModel | EntmaxModel):
        raise ValueError(f"model: {type(model).__name__} is not a plain model; make it from the baseline")
    _entmax15()
    model_class = entmax_class(type(model))
    values = {k: v for k, v in model.config.to_dict().items() if k not in ("model_type", "architectures")}
    config: Any = model_class.config_class(**values)  # type: ignore[misc]
    config._attn_implementation = model.config._attn_implementation
    return adopt_parameters(model, model_class, config)


for _family in FAMILIES:
    if not issubclass(_family.base, LEDForConditionalGeneration):
        entmax_class(_family.base)
