"""A model's gates and shortener: built from its config, checked against its encoder, and described in the config."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from l0drop.core.gates import GATES, Gate, LearnedGate
from l0drop.core.registry import Buildable
from l0drop.core.shorteners import SHORTENERS, Shortener
from l0drop.models.config import L0DropConfig
from l0drop.models.families import FAMILIES, Family
from l0drop.models.layerwise import GatedLayers
from l0drop.models.patterns import OpenGate
from l0drop.models.whisper import cut_early


def gate_defaults(config: Any, family: Family) -> dict[str, Any]:
    """The arguments of gates and shorteners that the config says outside `gate_args` and `shortener_args`."""
    l0drop: L0DropConfig = config.l0drop
    return {
        "width": config.hidden_size,
        "beta": l0drop.beta,
        "epsilon": l0drop.epsilon,
        "start": l0drop.start,
        "normalize": family.normalize,
    }


def build_gate(config: Any, family: Family, layer: int | None = None) -> Gate:
    """The gate behind the encoder, or an inner one that follows `layer`; one without effect beside a shortener."""
    l0drop: L0DropConfig = config.l0drop
    if l0drop.shortener is not None:
        return OpenGate()
    defaults = gate_defaults(config, family)
    if layer is not None:  # embeddings, before the first layer, have no fixed size either
        defaults["normalize"] = family.pre_norm or layer == 0
    with torch.device("cpu"):  # even if the rest is on the meta device: a gate may compute its initial values
        return GATES.class_of(l0drop.gate).build(l0drop.gate_args, **defaults)


def build_shortener(config: Any, family: Family) -> Shortener | None:
    """The shortener that the config names, if it names one."""
    l0drop: L0DropConfig = config.l0drop
    if l0drop.shortener is None:
        return None
    if family.reads_audio:
        raise ValueError(f"shortener: is for models of text, not for {family.base.__name__}; use gates")
    with torch.device("cpu"):
        shortener = SHORTENERS.class_of(l0drop.shortener).build(l0drop.shortener_args, **gate_defaults(config, family))
    check_attention(shortener, config, family)
    return shortener


def check_attention(shortener: Shortener, config: Any, family: Family) -> None:
    """Raise ValueError if the shortener needs an attention that the model cannot give it."""
    if not shortener.needs_attention:
        return
    if family.last_attention is None:
        raise ValueError(
            f"shortener: {type(shortener).__name__} needs the attention between all positions, but "
            f"{family.base.__name__} attends within windows"
        )
    if getattr(config, "encoder_layerdrop", 0):
        raise ValueError(
            f"shortener: {type(shortener).__name__} reads the last layer's attention; set encoder_layerdrop to 0"
        )


def check_reads(gate: Gate, config: Any) -> None:
    """Raise ValueError unless the encoder has the layers that a gate reads, with one output per source position."""
    if not gate.reads:
        return
    layers, l0drop = config.num_hidden_layers, config.l0drop
    if l0drop.layerwise or l0drop.cut_padding is not None:
        name = "layerwise" if l0drop.layerwise else "cut_padding"
        raise ValueError(
            f"{name}: removes rows inside the encoder, so {type(gate).__name__} cannot read several of its layers; "
            "use the learned gate"
        )
    if max(gate.reads) > layers:
        raise ValueError(f"gate_args: the encoder has {layers} layers, so there is no layer {max(gate.reads)}")
    if getattr(config, "encoder_layerdrop", 0):
        raise ValueError(f"gate: set encoder_layerdrop to 0; {type(gate).__name__} needs the layers that it skips")


def check_replacement(name: str, shortener: Shortener | None) -> None:
    """Raise ValueError for a new gate in a model with a shortener, or the other way round."""
    if name == "gate" and shortener is not None:
        raise ValueError(
            f"{name}: this model's memory comes from its shortener, {type(shortener).__name__}, without "
            "gates; replace model.shortener, or sparsify the base model without one"
        )
    if name == "shortener" and shortener is None:
        raise ValueError(
            f"{name}: this model has gates; name the shortener in L0DropConfig when you sparsify the base model"
        )


def make_room_for_gates(encoder: Any, config: Any, family: Family) -> tuple[int, ...]:
    """Let gates stand between the encoder's layers, and return the layer that each follows, counted from 1."""
    if not family.layerwise:
        able = ", ".join(family.base.__name__ for family in FAMILIES if family.layerwise)
        raise ValueError(f"layerwise: supported for {able}, not for {family.base.__name__}")
    if getattr(config, "encoder_layerdrop", 0):
        raise ValueError("layerwise: set encoder_layerdrop to 0; a skipped layer would skip its gate")
    inner_layers = config.l0drop.inner_layers(len(encoder.layers))
    encoder.layers = GatedLayers(encoder.layers)
    return inner_layers


def cut_before_layers(encoder: Any, config: Any, family: Family) -> None:
    """Let the encoder run on the first rows of a window only."""
    if not family.reads_audio:
        raise ValueError(f"cut_padding: is for models of audio, not for {family.base.__name__}")
    if getattr(config, "encoder_layerdrop", 0):
        raise ValueError("cut_padding: set encoder_layerdrop to 0; a skipped first layer would cut nothing")
    if not isinstance(encoder.layers, GatedLayers):
        encoder.layers = GatedLayers(encoder.layers)
    cut_early(encoder)


def has_initialized(parts: Sequence[Buildable], module: nn.Module, defaults: dict[str, Any]) -> bool:
    """Initialize a module of a gate or shortener as its constructor does; False if it belongs to none of `parts`."""
    for part in parts:
        for name, inner in part.named_modules():
            if inner is not module:
                continue
            with torch.device("cpu"):
                fresh = type(part).build(part.arguments, **defaults).get_submodule(name)
            for own, new in (
                (module.parameters(recurse=False), fresh.parameters(recurse=False)),
                (module.buffers(recurse=False), fresh.buffers(recurse=False)),
            ):
                for tensor, value in zip(own, new, strict=True):
                    if not getattr(tensor, "_is_hf_initialized", False) and not tensor.is_meta:
                        tensor.copy_(value)
            return True
    return False


def describe(gate: Gate, shortener: Shortener | None, config: Any, family: Family) -> None:
    """Write the names and arguments of the gate or shortener, which may have been replaced, into the config."""
    l0drop: L0DropConfig = config.l0drop
    if shortener is not None:
        name = SHORTENERS.name_of(shortener)
        l0drop.shortener, l0drop.shortener_args = name, _plain(shortener, name)
        return
    name = GATES.name_of(gate)
    arguments = _plain(gate, name)
    if isinstance(gate, LearnedGate):  # store only arguments that differ from the config
        defaults = gate_defaults(config, family)
        arguments = {k: v for k, v in arguments.items() if k not in defaults or v != defaults[k]}
    l0drop.gate, l0drop.gate_args = name, arguments


def _plain(part: Buildable, name: str) -> dict[str, Any]:
    """The arguments of a registered gate or shortener, for the config."""
    try:
        json.dumps(part.arguments)
    except TypeError as error:
        raise ValueError(
            f"{part.arguments_field}: the arguments of {name!r} must be plain JSON values: {error}"
        ) from None
    return dict(part.arguments)
