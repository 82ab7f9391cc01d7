"""Put one model's parameters into another model's modules, to add or remove a gate without copying weights."""

import copy
import threading
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

BUILDING = threading.RLock()
"""Held while modules are built or weights packed: Hugging Face's constructors patch `torch.nn.init`, and torch has one
setting for the engine that packs int8 weights. So in a process one thread builds at a time."""


def adopt_parameters(source: PreTrainedModel, model_class: type[Any], config: Any) -> Any:
    """A model of `model_class` that shares the parameter and buffer objects of `source`."""
    with BUILDING, torch.device("meta"):
        model = model_class(config)
    others = dict(source.named_modules(remove_duplicate=False))
    for name, module in model.named_modules(remove_duplicate=False):
        other = others.get(name)
        if other is None or other is source:
            continue
        if _plain_type(module) is not _plain_type(other) and not isinstance(other, nn.ModuleList):
            raise ValueError(
                f"model: {name} is a {type(other).__name__}, not a plain {type(module).__name__}; "
                "call sparsify before quantizing or adding adapters"
            )
        module._parameters.update(other._parameters)
        module._buffers.update(other._buffers)
        module.training = other.training
    model._buffers.update({name: tensor for name, tensor in source._buffers.items() if name in model._buffers})
    model.training = source.training
    model.generation_config = copy.deepcopy(source.generation_config)
    return model


def _plain_type(module: nn.Module) -> type:
    """The type of a module; for a layer that was adapted to a bias, the type that it adapts."""
    return getattr(type(module), "adapts", type(module))
