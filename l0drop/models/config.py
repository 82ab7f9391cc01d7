"""`L0DropConfig`, the user's settings, and the Hugging Face config classes that store it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from l0drop.core import readers as readers  # registers its gates, so that a saved model finds its gate
from l0drop.core.gates import GATES
from l0drop.core.memory import GATINGS, Gating
from l0drop.core.penalty import Reduction
from l0drop.core.shorteners import SHORTENERS
from l0drop.models import patterns as patterns  # registers the rules, so that a saved model finds its gate

FORMAT = 1
"""Version of the stored config; increased when an older l0drop can no longer read it."""

_FLOATS = ("lambda_", "target_sparsity", "beta", "epsilon", "start", "cut_padding")

DEFAULT_LAMBDA = 0.3
"""The default λ, if there is no target sparsity: the paper's value for fine-tuning."""

OF_GATES = (
    *("gating", "lambda_", "target_sparsity", "penalty", "beta", "epsilon", "start", "gate", "gate_args"),
    *("always_keep", "layerwise", "cut_padding"),
)
"""The fields that a model with a shortener has no use for."""


@dataclass
class L0DropConfig:
    """The settings of gates and penalty. Bad values raise ValueError with the field's name, also on assignment.

    gating: how the decoder sees a dropped encoding: `zero` (the paper), `mask`, `weight` or `mean`. Weights are trained
        for one gating, so a model's gating cannot be changed.
    lambda_: the weight of the penalty; default: 0.3, as in the paper. Not together with `target_sparsity`.
    target_sparsity: the share of encodings to drop; `model.steer` moves λ to reach it.
    penalty: `mean` or `sum` over a sentence's real tokens.
    beta, epsilon: temperature and stretch of the hard-concrete distribution.
    start: the gate's initial bias; default: ln((1+ε)/ε) + 0.6, where every gate is exactly 1.
    gate, gate_args: the name of a registered gate and its arguments.
    always_keep: ids of tokens that are never dropped: their gate is 1, and the penalty ignores them.
    layerwise: gates inside the encoder, too: True for one behind every layer, or a list of layers, counted from 1; 0 is
        before the first layer (for Whisper, behind the convolutions). The gate behind the last layer is always there.
    cut_padding: for Whisper: remove the rows behind the end of the audio, and this number of seconds, before the first
        encoder layer, in training and decoding. They are no part of the source then, like padding tokens of text.
        Default: Whisper reads the silence up to the end of its window.
    shortener, shortener_args: the name of a registered shortener and its arguments. It builds the memory in place of
        gates, in training and decoding, so the fields above keep their defaults. Default: gates.
    enabled: False runs the current weights without gates, or without the shortener.
    """

    gating: Gating = "zero"
    lambda_: float | None = None
    target_sparsity: float | None = None
    penalty: Reduction = "mean"
    beta: float = 2 / 3
    epsilon: float = 0.1
    start: float | None = None
    gate: str = "learned"
    gate_args: dict[str, Any] = field(default_factory=dict)
    always_keep: Sequence[int] = ()
    layerwise: bool | Sequence[int] = False
    cut_padding: float | None = None
    shortener: str | None = None
    shortener_args: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True

    def __post_init__(self) -> None:
        self._checked = True
        self._check()

    def fixed(self) -> "L0DropConfig":
        """A copy whose gating can no longer be changed, for a model."""
        copy = dataclasses.replace(self, gate_args=dict(self.gate_args), shortener_args=dict(self.shortener_args))
        object.__setattr__(copy, "_fixed", True)
        return copy

    def refuse_other_gating(self, gating: str) -> None:
        """Raise ValueError unless `gating` is the one the model is trained for."""
        if gating != self.gating:
            raise ValueError(
                f"gating: the model is trained for {self.gating!r} and decodes wrongly with {gating!r}; "
                f"load it with {self.gating!r}, or sparsify the base model again and train it with {gating!r}"
            )

    def builds_same_gates(self, other: "L0DropConfig") -> bool:
        """Whether models with these configs have gates of the same kind and number."""
        names = ("gate", "gate_args", "layerwise", "shortener", "shortener_args")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __setattr__(self, name: str, value: Any) -> None:
        known = {f.name for f in dataclasses.fields(self)} | {"_checked"}
        if name not in known:
            raise AttributeError(
                f"L0DropConfig has no field {name!r}; it has {', '.join(sorted(known - {'_checked'}))}"
            )
        ready = self.__dict__.get("_checked", False)
        if name == "gating" and self.__dict__.get("_fixed", False):
            self.refuse_other_gating(value)
        before = self.__dict__.get(name)
        if name in ("always_keep", "layerwise") and isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        if name in _FLOATS and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
            value = float(value)
        object.__setattr__(self, name, value)
        if ready:
            try:
                self._check()
            except ValueError:
                object.__setattr__(self, name, before)
                raise

    def _check(self) -> None:
        def require(name: str, fine: bool, expected: str) -> None:
            if not fine:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

        def is_number(value: Any) -> bool:
            return (
                isinstance(value, float) and abs(value) <= torch.finfo(torch.float32).max
            )  # gates are computed in float32

        require("gating", self.gating in GATINGS, f"one of {', '.join(GATINGS)}")
        if self.lambda_ is not None and self.target_sparsity is not None:
            raise ValueError(
                "lambda_ and target_sparsity: give only one of them; a target moves λ by itself "
                f"(got lambda_ {self.lambda_}, target_sparsity {self.target_sparsity})"
            )
        require(
            "lambda_",
            self.lambda_ is None or (is_number(self.lambda_) and self.lambda_ >= 0),
            "a number that is not negative",
        )
        target = self.target_sparsity
        require("target_sparsity", target is None or (is_number(target) and 0 < target < 1), "a share between 0 and 1")
        require("penalty", self.penalty in ("mean", "sum"), "mean or sum")
        require("beta", is_number(self.beta) and self.beta > 0, "a positive number")
        require("epsilon", is_number(self.epsilon) and self.epsilon > 0, "a positive number (the paper's -0.1 is 0.1)")
        require("start", self.start is None or is_number(self.start), "a number or None")
        require("gate", isinstance(self.gate, str), "the name of a registered gate")
        require("gate_args", isinstance(self.gate_args, dict), "a mapping of the gate's arguments")
        ids = self.always_keep
        fine = isinstance(ids, tuple) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        require("always_keep", fine, "a list of token ids")
        layers = self.layerwise
        fine = isinstance(layers, bool) or (
            isinstance(layers, tuple)
            and len(layers) == len(set(layers)) > 0
            and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in layers)
        )
        require("layerwise", fine, "True, False or a list of different layers, counted from 1 (0: before the first)")
        cut = self.cut_padding
        require("cut_padding", cut is None or (is_number(cut) and cut >= 0), "seconds that are not negative, or None")
        require("enabled", isinstance(self.enabled, bool), "True or False")
        require(
            "shortener", self.shortener is None or isinstance(self.shortener, str), "the name of a registered shortener"
        )
        require("shortener_args", isinstance(self.shortener_args, dict), "a mapping of the shortener's arguments")
        if self.shortener_args and self.shortener is None:
            raise ValueError(f"shortener_args: name the shortener that takes {self.shortener_args}, with shortener=")
        default = L0DropConfig() if self.shortener is not None else self
        for name in OF_GATES:
            if getattr(self, name) != getattr(default, name):
                raise ValueError(
                    f"{name}: is a setting of gates, and shortener={self.shortener!r} builds the memory without them; "
                    f"remove one of the two (got {getattr(self, name)!r})"
                )
        if self.layerwise and self.gating not in ("zero", "mask"):
            raise ValueError(
                f"layerwise: gates between layers act on single rows, so gating must be zero or mask, not {self.gating}"
            )
        if self.layerwise and self.gate != "learned":
            raise ValueError(f"layerwise: only the learned gate works between layers, not {self.gate!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the format version."""
        layerwise = self.layerwise if isinstance(self.layerwise, bool) else list(self.layerwise)
        lists = {"always_keep": list(self.always_keep), "layerwise": layerwise}
        return {"format": FORMAT, **dataclasses.asdict(self), **lists}

    def inner_layers(self, layers: int) -> tuple[int, ...]:
        """The layers, counted from 1, that a gate follows inside an encoder of `layers` layers; 0: before the first."""
        chosen = range(1, layers) if isinstance(self.layerwise, bool) else sorted(self.layerwise)
        if chosen and chosen[-1] > layers:
            raise ValueError(f"layerwise: the encoder has {layers} layers, so there is no layer {chosen[-1]}")
        return tuple(layer for layer in chosen if layer < layers) if self.layerwise else ()

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "L0DropConfig":
        values = dict(stored)
        version = values.pop("format", FORMAT)
        if version != FORMAT:
            raise ValueError(
                f"l0drop.format: this l0drop reads version {FORMAT}, the model has {version}; upgrade l0drop"
            )
        unknown = set(values) - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"l0drop: unknown field {', '.join(sorted(unknown))} in the model's config")
        config = cls(**values)
        GATES.class_of(config.gate)
        if config.shortener is not None:
            SHORTENERS.class_of(config.shortener)
        return config


class L0DropModelConfig:
    """Mixin for the config of an L0Drop model: adds the field `l0drop`, whose gating cannot be changed."""

    base_config: type[PreTrainedConfig]

    @property
    def l0drop(self) -> L0DropConfig:
        return self.__dict__["_l0drop"]

    @l0drop.setter
    def l0drop(self, value: "L0DropConfig | dict[str, Any] | None") -> None:
        present: L0DropConfig | None = self.__dict__.get("_l0drop")
        if isinstance(value, L0DropConfig):
            config = value
        else:  # a mapping changes only the fields that it names
            config = L0DropConfig.from_dict({**(present.to_dict() if present is not None else {}), **(value or {})})
        if present is not None and self.__dict__["_l0drop_given"]:
            present.refuse_other_gating(config.gating)
        self.__dict__["_l0drop"] = config.fixed()
        self.__dict__["_l0drop_given"] = value is not None or self.__dict__.get("_l0drop_given", False)

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()  # type: ignore[misc]
        del values["_l0drop"], values["_l0drop_given"]
        return {**values, "l0drop": self.l0drop.to_dict()}

    def to_base(self) -> PreTrainedConfig:
        """The plain config of the base model."""
        values = {k: v for k, v in self.to_dict().items() if k not in ("l0drop", "model_type", "architectures")}
        base = self.base_config(**values)
        base._attn_implementation = self._attn_implementation  # type: ignore[attr-defined]
        return base


_classes: dict[Any, Any] = {}


def config_class(base: Any) -> Any:
    """`L0Drop<Base>Config`, registered with the Auto classes under the model type `l0drop_<base>`."""
    if base in _classes:
        return _classes[base]

    class Config(L0DropModelConfig, base):
        model_type = f"l0drop_{base.model_type}"
        base_config = base
        keys_to_ignore_at_inference = [  # noqa: RUF012
            *getattr(base, "keys_to_ignore_at_inference", ["past_key_values"]),
            *("cross_entropy", "penalty", "sparsity", "gates", "layer_gates"),
        ]

        def __init__(self, l0drop: L0DropConfig | dict[str, Any] | None = None, **kwargs: Any) -> None:
            self.l0drop = l0drop
            super().__init__(**kwargs)

    Config.__name__ = Config.__qualname__ = f"L0Drop{base.__name__}"
    Config.__module__ = __name__
    globals()[Config.__name__] = Config  # so that it can be pickled
    AutoConfig.register(Config.model_type, Config)
    _classes[base] = Config
    return Config


def wrap_config(base: PreTrainedConfig, l0drop: L0DropConfig) -> PreTrainedConfig:
    """The L0Drop config with all values of the base model's config."""
    values = {k: v for k, v in base.to_dict().items() if k not in ("model_type", "architectures")}
    config = config_class(type(base))(l0drop=l0drop, **values)
    config._attn_implementation = base._attn_implementation
    config._name_or_path = base._name_or_path
    return config
