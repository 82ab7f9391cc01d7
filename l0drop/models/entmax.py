"""Sparse cross-attention for the comparison of Figure 2: α-entmax instead of softmax.

Entmax sets individual attention weights to 0, different ones at each decoder step. No encoding is dropped; decoding
needs them all. `with_entmax(model)` returns an `Entmax<Base>` model to fine-tune. Its cross-attention uses a separate
function of transformers' AttentionInterface; no forward is copied, and no hook is left. α is 1.5, or learned by every
head (Correia, Niculae and Martins, 2019): `with_entmax(model, alpha="learned")`.

    model = with_entmax(AutoModelForSeq2SeqLM.from_pretrained("runs/base/model"))
    model.save_pretrained("runs/base-entmax/model")

Copy the baseline's tokenizer/ next to model/; then a recipe with `init: runs/base-entmax` and no `l0drop` trains it.

Shapes: B sentences, H heads, T target positions, N source positions, D width of a head.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    LEDForConditionalGeneration,
    PreTrainedModel,
)

from l0drop.core import hard_concrete
from l0drop.models.adopt import adopt_parameters
from l0drop.models.families import FAMILIES, family_of
from l0drop.models.modeling import L0DropModel

IMPLEMENTATION = "l0drop_entmax15"
CROSS_ATTENTION = ("encoder_attn", "EncDecAttention")
"""The names of the attention from decoder to encoder in the families' modules."""
FIXED_ALPHA, LEARNED = 1.5, "learned"
LEAST_ALPHA = 1.01
"""Of learned ones, as in the code of Correia et al."""


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
    """Attention with p = argmax ⟨p, scores⟩ + H(p) over the simplex, H Tsallis' α-entropy (softmax: α = 1).

    α is 1.5, or that of the module's heads if it has learned ones (`entmax_a`).

    query [B, H, T, D], key and value [B, H, N, D]; the mask is True on real tokens, or added to the scores. In the
    decoding engine, the query has one row per beam, with one position each: [B · beams, H, 1, D].
    """
    beams = len(query) // len(key)
    if beams > 1:
        query = query.unflatten(0, (-1, beams)).squeeze(3).transpose(1, 2)  # beams as query positions on the same keys
        position_bias = None if position_bias is None else position_bias[:, :, -1:]
    scores_BHTN = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if position_bias is not None:
        scores_BHTN = scores_BHTN + position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores_BHTN = scores_BHTN.masked_fill(~attention_mask, -torch.inf)
    elif attention_mask is not None:
        scores_BHTN = scores_BHTN + attention_mask
    weights_BHTN = _weights(module, hard_concrete.wide(scores_BHTN)).to(query.dtype)
    weights_BHTN = nn.functional.dropout(weights_BHTN, p=dropout, training=module.training)
    output_BTHD = (weights_BHTN @ value).transpose(1, 2)
    if beams > 1:
        output_BTHD = output_BTHD.flatten(0, 1)[:, None]
    return output_BTHD.contiguous(), weights_BHTN


def _weights(module: nn.Module, scores_BHTN: Tensor) -> Tensor:
    a_H = getattr(module, "entmax_a", None)
    if a_H is None:
        return _package().entmax15(scores_BHTN, dim=-1)
    return _package().entmax_bisect(scores_BHTN, learned_alpha(a_H).to(scores_BHTN.dtype)[:, None, None], dim=-1)


def learned_alpha(a_H: Tensor) -> Tensor:
    """α = 1 + σ(a), between sparsemax (2) and nearly softmax; at 1 itself the threshold would be infinite."""
    return (1 + torch.sigmoid(hard_concrete.wide(a_H))).clamp_min(LEAST_ALPHA)


def _package() -> Any:
    try:
        import entmax
    except ImportError as error:
        raise ValueError("entmax: sparse attention needs the `entmax` package: pip install l0drop[entmax]") from error
    return entmax


AttentionInterface.register(IMPLEMENTATION, entmax_attention)


class EntmaxModel(PreTrainedModel):
    """Mixin for `Entmax<Base>` classes. It comes first in their bases and is never used alone."""

    base_class: type[PreTrainedModel]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, L0DropModel):
            raise ValueError(
                "model: its cross-attention is entmax, but short memories are exact with softmax only; "
                "sparsify the softmax model"
            )

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for name, module in self.get_decoder().named_modules():
            if name.endswith(CROSS_ATTENTION):
                # a separate config, so that the attention of the rest of the model stays and can be changed
                separate: Any = copy.copy(module.config)
                separate._attn_implementation_internal = IMPLEMENTATION
                module.config = separate
                if config.entmax_alpha == LEARNED:
                    heads = getattr(module, "num_heads", None) or module.n_heads  # T5's name
                    with torch.device("cpu"):  # even if the rest is on the meta device: it may come from no file
                        module.entmax_a = nn.Parameter(torch.zeros(heads))


_classes: dict[type[PreTrainedModel], type[EntmaxModel]] = {}


def entmax_class(base: type[PreTrainedModel]) -> type[EntmaxModel]:
    """`Entmax<Base>`, registered with the Auto classes under the model type `entmax_<base>`."""
    if base in _classes:
        return _classes[base]
    family = family_of(base)
    if issubclass(base, LEDForConditionalGeneration):
        raise ValueError("model: LED does not use the AttentionInterface, so entmax does not work with it")
    base_config: Any = base.config_class
    names = {"model_type": f"entmax_{base_config.model_type}", "entmax_alpha": FIXED_ALPHA, "__module__": __name__}
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
        family.auto.register(config_class, model_class)
    _classes[base] = model_class
    return model_class


def with_entmax(model: PreTrainedModel, alpha: float | str = FIXED_ALPHA) -> EntmaxModel:
    """An `Entmax<Base>` model that shares the model's Parameter objects: training one trains both.

    alpha: 1.5, or "learned": every head learns α = 1 + σ(a), which starts at 1.5. The model stores which.

    Weights trained with softmax give different outputs with entmax: fine-tune before comparing.
    """
    if isinstance(model, L0DropModel | EntmaxModel):
        raise ValueError(f"model: {type(model).__name__} is not a plain model; pass the dense base model")
    if alpha not in (FIXED_ALPHA, LEARNED):
        raise ValueError(f"alpha: expected {FIXED_ALPHA} or {LEARNED!r}, got {alpha!r}")
    _package()
    model_class = entmax_class(type(model))
    values = {k: v for k, v in model.config.to_dict().items() if k not in ("model_type", "architectures")}
    config: Any = model_class.config_class(**values)  # type: ignore[misc]
    config._attn_implementation = model.config._attn_implementation
    config.entmax_alpha = alpha
    sparse: EntmaxModel = adopt_parameters(model, model_class, config)
    for name, parameter in sparse.named_parameters():
        if name.endswith("entmax_a"):
            parameter.data = parameter.to(model.device, model.dtype)
    return sparse


for _family in FAMILIES:
    if not issubclass(_family.base, LEDForConditionalGeneration):
        entmax_class(_family.base)
