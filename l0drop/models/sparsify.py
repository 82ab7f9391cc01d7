"""`sparsify`, which adds a gate to a model, and the class factory behind it."""

import functools
import inspect
import os
from typing import Any

from transformers import PreTrainedModel

from l0drop.models import entmax as entmax  # registers its models, so that the Auto classes load them
from l0drop.models.adopt import adopt_parameters
from l0drop.models.config import L0DropConfig, config_class, wrap_config
from l0drop.models.families import FAMILIES, family_of
from l0drop.models.modeling import L0DropModel

_classes: dict[type[PreTrainedModel], type[L0DropModel]] = {}


def sparse_class(base: type[PreTrainedModel]) -> type[L0DropModel]:
    """`L0Drop<Base>`: the base class with a gate. Its `from_pretrained` also loads plain checkpoints of the base."""
    if base in _classes:
        return _classes[base]
    family = family_of(base)
    model_class = type(
        f"L0Drop{base.__name__}",
        (L0DropModel, base) if family.parts is None else (L0DropModel, family.parts, base),
        {
            "family": family,
            "base_class": base,
            "config_class": config_class(base.config_class),
            "__module__": __name__,
        },
    )
    model_class.forward = _with_signature(L0DropModel.forward, base)  # type: ignore[attr-defined]
    globals()[model_class.__name__] = model_class  # so that it can be pickled
    if base is family.base:
        family.auto.register(model_class.config_class, model_class)  # type: ignore[attr-defined]
    _classes[base] = model_class
    return model_class


def _with_signature(forward: Any, base: type[PreTrainedModel]) -> Any:
    """`forward` with a signature that names the base's arguments too: the Trainer and generate inspect it."""

    positions = list(inspect.signature(base.forward).parameters)[1:]

    @functools.wraps(forward)
    def with_names(self: L0DropModel, *args: Any, **kwargs: Any) -> Any:
        return forward(self, **dict(zip(positions, args, strict=False)), **kwargs)

    own = inspect.signature(forward).parameters
    named = [p for n, p in inspect.signature(base.forward).parameters.items() if n not in own]
    together = [p for p in own.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    together += [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in named if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    wildcard = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    with_names.__signature__ = inspect.Signature([*together, wildcard])  # type: ignore[attr-defined]
    return with_names


def sparsify(model: PreTrainedModel, config: L0DropConfig | None = None) -> L0DropModel:
    """An `L0Drop<Base>` model that shares the base model's Parameter objects: training one trains both.

    It starts open: in eval mode it gives the base model's outputs, unless a rule or a shortener drops rows from the
    start. Copy the base model first if you need a teacher.

        model = sparsify(AutoModelForSeq2SeqLM.from_pretrained(name), L0DropConfig(target_sparsity=0.4))
    """
    if isinstance(model, str | os.PathLike):
        raise TypeError(f"model: expected a model, got {model!r}; load it with AutoModelForSeq2SeqLM.from_pretrained")
    if config is not None and not isinstance(config, L0DropConfig):
        number = isinstance(config, int | float) and not isinstance(config, bool)
        written = f"target_sparsity={config}" if number else "target_sparsity=0.4"
        raise TypeError(f"config: expected an L0DropConfig, got {config!r}; write L0DropConfig({written})")
    if isinstance(model, L0DropModel):
        raise ValueError(
            f"model: {type(model).__name__} already has a gate, with gating {model.config.l0drop.gating!r}; "
            "use it unchanged, or sparsify the base model (model.export(folder) writes it)"
        )
    model_class = sparse_class(type(model))
    sparse = adopt_parameters(model, model_class, wrap_config(model.config, config or L0DropConfig()))
    for part in (sparse.gate, sparse.inner_gates, sparse.shortener):
        if part is not None:
            part.to(model.device).train(model.training)
    if model.is_gradient_checkpointing:
        sparse.gradient_checkpointing_enable()
    return sparse


for _family in FAMILIES:
    sparse_class(_family.base)
