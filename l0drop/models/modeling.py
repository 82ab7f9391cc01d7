"""Hugging Face encoder-decoders with a gate, or another shortener, between encoder and decoder.

`sparsify(model)` returns an `L0Drop<Base>` model: a subclass of the base model's class that overrides `get_encoder` and
`forward`. It inherits state-dict keys, tied weights, generation, saving, the Auto classes and the use in a Trainer.

    encoder ─ encodings ─ gate ─ Gates ─┬─ training, dense: full length, gated ─▶ decoder
                                        └─ eval: compressed once ─▶ decoder

    encoder ─ encodings ─ shortener ─ Memory ─▶ decoder      (if the config names one: in training and eval, no gates)

The short memory is passed on as `encoder_outputs`, with its bias as a field, so `generate` expands both for its beams.
The decoder takes the bias as an additive attention mask.

Shapes: B sentences, N source positions, K memory rows, D model width.
"""

import functools
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from l0drop.core import hard_concrete
from l0drop.core.dial import Dial, Dials, Draw
from l0drop.core.gates import NOISE, STATES, Gate, Gates, LearnedGate, gate_class, gate_name
from l0drop.core.memory import Memory, dense_memory, keep_one, short_memory
from l0drop.core.penalty import penalised, penalty
from l0drop.core.registry import Buildable
from l0drop.core.shorteners import Shortener, shortener_class, shortener_name
from l0drop.models.adopt import adopt_parameters
from l0drop.models.attention import check_adds_bias, needs_bias_like_states
from l0drop.models.card import write_card
from l0drop.models.config import L0DropConfig
from l0drop.models.controls import Controls
from l0drop.models.families import FAMILIES, Family
from l0drop.models.layerwise import GatedLayers, LayerRun
from l0drop.models.loading import GATE_NAMES, check_weights
from l0drop.models.outputs import L0DropEncoderOutput, L0DropOutput
from l0drop.models.patterns import OpenGate
from l0drop.models.received import attention_received, noting_last_input
from l0drop.models.stamp import check_base, check_stamp, write_stamp
from l0drop.models.whisper import at_source, cut_early, first_rows

DIAL_STREAM = 1 << 21
"""The first stream of keyed noise for the dial in training; gates use lower ones."""
SAMPLED_SHARE = 0.5
"""The share of sentences whose gates are sampled when the dial's `keep` acts in training."""


class GatedEncoder:
    """The encoder followed by the gate, as `get_encoder` returns it. It owns no parameters."""

    def __init__(self, model: "L0DropModel", encoder: nn.Module) -> None:
        self.__dict__.update(_model=model, _encoder=encoder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_encoder":
            raise AttributeError(name)
        return getattr(self._encoder, name)

    # generate passes only arguments that forward names, unless it has a parameter called exactly `kwargs`
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        noise_key: Tensor | None = None,
        **kwargs: Any,
    ) -> L0DropEncoderOutput:
        with torch.no_grad() if self._model.has_fixed_gates else nullcontext():
            return self._model._encode(self._encoder, input_ids, attention_mask, hints, noise_key, **kwargs)

    __call__ = forward


class L0DropModel(Controls, PreTrainedModel):
    """Mixin for `L0Drop<Base>` classes. It comes first in their bases and is never used alone."""

    family: Family
    base_class: type[PreTrainedModel]
    gate: Gate
    shortener: Shortener | None
    _features_for_training: Any  # of the parts of a family that reads audio
    audio_rows: Any
    accepts_loss_kwargs = False  # the base losses ignore num_items_in_batch, so the Trainer must divide
    _keep_in_fp32_modules_strict = {"gate", "inner_gates", "shortener"}  # noqa: RUF012

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        l0drop: L0DropConfig = config.l0drop
        self.shortener = None if l0drop.shortener is None else self._build_shortener(l0drop.shortener)
        self.gate = self._build_gate()
        self.inner_gates = nn.ModuleList()
        self.inner_layers: tuple[int, ...] = ()
        """The layer that each inner gate follows, counted from 1; 0 is before the first."""
        if l0drop.layerwise:
            self._put_gates_between_layers()
        if l0drop.cut_padding is not None:
            self._cut_before_layers()
        self.set_schedule()
        self._dial_key = object()
        self.post_init()

    # --- building and saving the gate -----------------------------------------------------------------------------

    def _build_shortener(self, name: str) -> Shortener:
        if self.family.reads_audio:
            raise ValueError(f"shortener: is for models of text, not for {self.family.base.__name__}; use gates")
        with torch.device("cpu"):
            shortener = shortener_class(name).build(self.config.l0drop.shortener_args, **self._gate_defaults())
        self._check_attention_for(shortener)
        return shortener

    def _check_attention_for(self, shortener: Shortener) -> None:
        """Raise ValueError if the shortener needs an attention that this model cannot give it."""
        if not shortener.needs_attention:
            return
        if self.family.last_attention is None:
            raise ValueError(
                f"shortener: {type(shortener).__name__} needs the attention between all positions, but "
                f"{self.family.base.__name__} attends within windows"
            )
        if getattr(self.config, "encoder_layerdrop", 0):
            raise ValueError(
                f"shortener: {type(shortener).__name__} reads the last layer's attention; set encoder_layerdrop to 0"
            )

    def _build_gate(self, layer: int | None = None) -> Gate:
        """The gate behind the encoder, or an inner one that follows `layer`; one without effect beside a shortener."""
        l0drop: L0DropConfig = self.config.l0drop
        if self.shortener is not None:
            return OpenGate()
        defaults = self._gate_defaults()
        if layer is not None:  # embeddings, before the first layer, have no fixed size either
            defaults["normalize"] = self.family.pre_norm or layer == 0
        with torch.device("cpu"):  # even if the rest is on the meta device: a gate may compute its initial values
            return gate_class(l0drop.gate).build(l0drop.gate_args, **defaults)

    def _gate_defaults(self) -> dict[str, Any]:
        l0drop: L0DropConfig = self.config.l0drop
        return {
            "width": self.config.hidden_size,
            "beta": l0drop.beta,
            "epsilon": l0drop.epsilon,
            "start": l0drop.start,
            "normalize": self.family.normalize,
        }

    def _put_gates_between_layers(self) -> None:
        if not self.family.layerwise:
            able = ", ".join(family.base.__name__ for family in FAMILIES if family.layerwise)
            raise ValueError(f"layerwise: supported for {able}, not for {self.family.base.__name__}")
        if getattr(self.config, "encoder_layerdrop", 0):
            raise ValueError("layerwise: set encoder_layerdrop to 0; a skipped layer would skip its gate")
        encoder = super().get_encoder()
        self.inner_layers = self.config.l0drop.inner_layers(len(encoder.layers))
        encoder.layers = GatedLayers(encoder.layers)
        self.inner_gates.extend(self._build_gate(layer) for layer in self.inner_layers)

    def _cut_before_layers(self) -> None:
        if not self.family.reads_audio:
            raise ValueError(f"cut_padding: is for models of audio, not for {self.family.base.__name__}")
        if getattr(self.config, "encoder_layerdrop", 0):
            raise ValueError("cut_padding: set encoder_layerdrop to 0; a skipped first layer would cut nothing")
        encoder = super().get_encoder()
        if not isinstance(encoder.layers, GatedLayers):
            encoder.layers = GatedLayers(encoder.layers)
        cut_early(encoder)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "gate" and isinstance(value, Gate):
            self._check_reads(value)
        is_built = "gate" in self.__dict__.get("_modules", {})
        if is_built and name in ("gate", "shortener") and isinstance(value, Buildable):
            self._check_replacement(name, value)
            value.to(self.device).train(self.training)  # as the gate or shortener that it replaces
        super().__setattr__(name, value)

    def _check_replacement(self, name: str, value: Buildable) -> None:
        """Raise ValueError for a gate in a model with a shortener, or the other way round."""
        if name == "gate" and self.shortener is not None:
            raise ValueError(
                f"{name}: this model's memory comes from its shortener, {type(self.shortener).__name__}, without "
                "gates; replace model.shortener, or sparsify the base model without one"
            )
        if name == "shortener" and self.shortener is None:
            raise ValueError(
                f"{name}: this model has gates; name the shortener in L0DropConfig when you sparsify the base model"
            )
        if isinstance(value, Shortener):
            self._check_attention_for(value)

    def _check_reads(self, gate: Gate) -> None:
        """Raise ValueError unless the encoder has the layers that a gate reads, with one output per source position."""
        if not gate.reads:
            return
        layers, l0drop = self.config.num_hidden_layers, self.config.l0drop
        if l0drop.layerwise or l0drop.cut_padding is not None:
            name = "layerwise" if l0drop.layerwise else "cut_padding"
            raise ValueError(
                f"{name}: removes rows inside the encoder, so {type(gate).__name__} cannot read several of its layers; "
                "use the learned gate"
            )
        if max(gate.reads) > layers:
            raise ValueError(f"gate_args: the encoder has {layers} layers, so there is no layer {max(gate.reads)}")
        if getattr(self.config, "encoder_layerdrop", 0):
            raise ValueError(f"gate: set encoder_layerdrop to 0; {type(gate).__name__} needs the layers that it skips")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize gates, shorteners and their submodules as their constructors do, not like the base's layers."""
        for part in (m for m in self.modules() if isinstance(m, Buildable)):
            for name, inner in part.named_modules():
                if inner is not module:
                    continue
                with torch.device("cpu"):
                    fresh = type(part).build(part.arguments, **self._gate_defaults()).get_submodule(name)
                for own, new in (
                    (module.parameters(recurse=False), fresh.parameters(recurse=False)),
                    (module.buffers(recurse=False), fresh.buffers(recurse=False)),
                ):
                    for tensor, value in zip(own, new, strict=True):
                        if not getattr(tensor, "_is_hf_initialized", False) and not tensor.is_meta:
                            tensor.copy_(value)
                return
        super()._init_weights(module)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Hugging Face's own, which also writes a model card (README.md) if the folder has none."""
        l0drop: L0DropConfig = self.config.l0drop
        if self.shortener is not None:
            name = shortener_name(self.shortener)
            l0drop.shortener, l0drop.shortener_args = name, _plain(self.shortener, name)
        else:
            name = gate_name(self.gate)
            arguments = _plain(self.gate, name)
            if isinstance(self.gate, LearnedGate):  # store only arguments that differ from the config
                defaults = self._gate_defaults()
                arguments = {k: v for k, v in arguments.items() if k not in defaults or v != defaults[k]}
            l0drop.gate, l0drop.gate_args = name, arguments
        super().save_pretrained(save_directory, *args, **kwargs)
        if args[0] if args else kwargs.get("is_main_process", True):
            write_stamp(Path(save_directory), l0drop)
            write_card(self, save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Hugging Face's own. A saved L0Drop model must have all weights; a plain checkpoint has none for the gate."""
        stored: dict[str, Any] = {}
        if pretrained_model_name_or_path is not None:
            known = {k: kwargs[k] for k in ("cache_dir", "revision", "subfolder", "token") if k in kwargs}
            stored, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **known)
        saved = L0DropConfig.from_dict(stored["l0drop"]) if "l0drop" in stored else None
        if saved is not None and hasattr(config, "l0drop"):
            saved.refuse_other_gating(config.l0drop.gating)
        folder = Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or "")
        if folder.is_dir():
            check_base(folder, stored)
            check_stamp(folder, saved or L0DropConfig())
        with_info = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path, *args, config=config, output_loading_info=True, **kwargs
        )
        model, info = loaded
        decides = with_info or kwargs.get("ignore_mismatched_sizes", False)  # the caller decides what may be missing
        if saved is not None and not decides:
            same_gate = saved.builds_same_gates(model.config.l0drop)  # not if the caller asked for another gate
            check_weights(str(pretrained_model_name_or_path), model, info, () if same_gate else GATE_NAMES)
        return loaded if with_info else model

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write the base model, without gates, as a plain checkpoint that loads without l0drop."""
        adopt_parameters(self, self.base_class, self.config.to_base()).save_pretrained(directory)

    # --- encoding ------------------------------------------------------------------------------------------------

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        encoder = super().get_encoder(*args, **kwargs)
        return GatedEncoder(self, encoder) if self.config.l0drop.enabled else encoder

    def _encode(
        self,
        encoder: Any,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        hints: Mapping[str, Tensor] | None,
        noise_key: Tensor | None,
        **kwargs: Any,
    ) -> L0DropEncoderOutput:
        """Run the encoder, with the gates between its layers if there are any, then the gate or the shortener."""
        check_adds_bias(self._attention_implementation)
        kwargs.update(attention_mask=attention_mask, return_dict=True)
        asked = kwargs.get("output_hidden_states")
        if self.gate.reads:
            kwargs["output_hidden_states"] = True
        if input_ids is not None:
            kwargs["input_ids"] = input_ids
        if self.shortener is not None:
            return self._encode_and_shorten(self.shortener, encoder, attention_mask, kwargs)
        run, dial = None, self.current_dial
        cut = self.config.l0drop.cut_padding is not None
        if self.config.l0drop.layerwise or cut:
            inputs = self.family.inputs_of({**kwargs, "input_ids": input_ids})
            mask_BN, _ = self.source_rows(attention_mask, inputs)
            if cut:
                mask_BN = self.audio_rows(inputs)
                mask_BN = mask_BN[:, : int(mask_BN.sum(1).max())]
            decide = functools.partial(
                self._call_gate, input_ids=input_ids, hints=None, noise_key=noise_key, real_BN=mask_BN
            )
            gates = dict(zip(self.inner_layers, self.inner_gates, strict=True))
            short = self._is_short(dial)
            run = LayerRun(gates, decide, mask_BN, self.config.l0drop.gating, remove_rows=short, cut=cut)
        with ExitStack() as stack:
            if run is not None:
                stack.enter_context(encoder.layers.running(run))
                if cut:
                    stack.enter_context(first_rows(encoder, run.mask_BN.shape[1]))
            outputs = encoder(**kwargs)
        assert run is None or (run.was_entered and len(run.layer_gates) == len(self.inner_gates)), (
            "the encoder did not iterate its layers"
        )
        source = None
        if cut:
            assert run is not None
            _, counted_BN = self.source_rows(attention_mask, run.mask_BN)
            source = run.mask_BN, counted_BN[:, : run.mask_BN.shape[1]] & run.mask_BN
        inner = run if self.config.l0drop.layerwise else None
        memory = self._gate(outputs, input_ids, attention_mask, hints, noise_key, dial, inner, source)
        if self.gate.reads and not (self.config.output_hidden_states if asked is None else asked):
            memory.hidden_states = None
        return memory

    def _encode_and_shorten(
        self, shortener: Shortener, encoder: Any, attention_mask: Tensor | None, arguments: dict[str, Any]
    ) -> L0DropEncoderOutput:
        """Run the encoder, then the shortener, with the last layer's attention if it needs that."""
        if not shortener.needs_attention:
            return self._shorten(shortener, encoder(**arguments), attention_mask)
        last = self.family.last_attention
        assert last is not None, "checked when the shortener was set"
        view, layer = noting_last_input(last, encoder)
        outputs = view(**arguments)
        mask_BN, _ = self.source_rows(attention_mask, layer.noted)
        received_BN = attention_received(last, encoder, layer.noted, mask_BN)
        return self._shorten(shortener, outputs, attention_mask, attention=received_BN)

    def _shorten(
        self, shortener: Shortener, outputs: Any, attention_mask: Tensor | None, **given: Tensor
    ) -> L0DropEncoderOutput:
        """The memory for the decoder, from encodings, without gates."""
        encodings = outputs.last_hidden_state
        mask_BN, _ = self.source_rows(attention_mask, encodings)
        memory = shortener(encodings, mask_BN, **given)
        if not isinstance(memory, Memory):
            raise ValueError(
                f"shortener: {type(shortener).__name__}.forward must return a Memory, got {type(memory).__name__}"
            )
        memory.check(encodings, mask_BN)
        return L0DropEncoderOutput(
            last_hidden_state=memory.states,  # type: ignore[arg-type]
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            global_attentions=getattr(outputs, "global_attentions", None),
            memory_bias=memory.bias,
            memory_index=memory.index,
            gates=Gates(memory.with_rows(mask_BN).to(memory.bias.dtype)),
            penalty=memory.bias.new_zeros(len(memory.count)),
            dropped=memory.count,
            real=mask_BN.sum(1),
        )

    def _is_short(self, dial: Dial | Dials) -> bool:
        return not self.training and not dial.dense

    def _gate(
        self,
        outputs: Any,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        hints: Mapping[str, Tensor] | None,
        noise_key: Tensor | None,
        dial: Dial | Dials,
        run: LayerRun | None,
        source: tuple[Tensor, Tensor] | None = None,
    ) -> L0DropEncoderOutput:
        """The memory for the decoder, from encodings.

        source: the rows of the source and those that sparsity counts, if padding was cut.
        The dial is an argument because torch cannot compile the reading of a context variable.
        """
        l0drop: L0DropConfig = self.config.l0drop
        encodings = outputs.last_hidden_state if run is None else run.restore(outputs.last_hidden_state)
        mask_BN, counted_BN = self.source_rows(attention_mask, encodings) if source is None else source
        removed = run is not None and run.remove_rows
        visible_BN = run.alive_BN if run is not None and removed else mask_BN
        stream = len(self.inner_gates)
        if self.gate.reads:
            hints = {**(hints or {}), STATES: self._states(outputs)}
        gates = self._call_gate(self.gate, encodings, visible_BN, None, stream, input_ids, hints, noise_key, mask_BN)
        if run is not None:
            if l0drop.gating == "mask" and not removed:
                gates = run.among_alive(gates, self.gate)
            gates = run.joined(gates)
        always_BN = self._always(input_ids, mask_BN)
        penalised_BN = mask_BN if always_BN is None else mask_BN & ~always_BN
        all_gates = (*run.layer_gates, gates) if run is not None else (gates,)
        penalty_B = encodings.new_zeros(len(encodings), dtype=gates.values.dtype)
        for one in all_gates:
            if one.open_probability is not None:
                penalty_B = penalty_B + penalty(one.open_probability, penalised_BN, l0drop.penalty)
        dropped_B = self._dropped(gates, mask_BN, counted_BN, always_BN, run) if self.training else None
        sampled = self.training and isinstance(dial, Dial) and dial.keep is not None
        draw = self._draw(gates, mask_BN, noise_key) if sampled else None
        turned = dial.turn(gates, mask_BN, l0drop.gating, self.gate.at, always_BN, draw)
        if turned is not gates:
            turned.check(mask_BN)
        gates = keep_one(turned, mask_BN, l0drop.gating)
        if dropped_B is None:
            dropped_B = ((gates.values == 0) & counted_BN).sum(1)
        # mask and gates were checked when they were made, and every further check would wait for the device
        if self._is_short(dial):
            most = int((gates.values != 0).sum(1).max())
            memory = short_memory(encodings, gates.values, mask_BN, l0drop.gating, most)
        else:
            memory = dense_memory(encodings, gates.values, mask_BN, l0drop.gating)
        if source is not None:
            rows = self.config.max_source_positions
            gates, *inner = (_padded(one, rows) for one in (gates, *all_gates[:-1]))
            all_gates = (*inner, gates)
        return L0DropEncoderOutput(
            last_hidden_state=memory.states,  # type: ignore[arg-type]
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            global_attentions=getattr(outputs, "global_attentions", None),
            memory_bias=memory.bias,
            memory_index=memory.index,
            gates=gates,
            layer_gates=(*all_gates[:-1], gates) if run is not None else None,
            penalty=penalty_B,
            dropped=dropped_B,
            real=counted_BN.sum(1),
        )

    def _states(self, outputs: Any) -> Tensor:
        """[B, N, L, D], the outputs of the encoder layers that the gate reads."""
        if outputs.hidden_states is None:
            raise ValueError(
                f"encoder_outputs: {type(self.gate).__name__} reads the encoder layers {list(self.gate.reads)}; call "
                "the encoder with output_hidden_states=True"
            )
        return torch.stack([outputs.hidden_states[layer] for layer in self.gate.reads], 2)

    def _call_gate(
        self,
        gate: Gate,
        encodings: Tensor,
        mask: Tensor,
        index: Tensor | None,
        stream: int,
        input_ids: Tensor | None,
        hints: Mapping[str, Tensor] | None,
        noise_key: Tensor | None,
        real_BN: Tensor,
    ) -> Gates:
        """One gate's decisions on the rows of `mask`; `index` holds the source positions of those rows."""
        if self.training and noise_key is not None:
            if noise_key.shape != real_BN.shape[:1]:
                raise ValueError(f"noise_key: expected shape ({len(real_BN)},), got {tuple(noise_key.shape)}")
            hints = {**(hints or {}), NOISE: _keyed_noise(noise_key, real_BN, stream, encodings)}
        gates = gate(encodings, mask, input_ids=input_ids, hints=hints)
        if not isinstance(gates, Gates):
            raise ValueError(f"gate: {type(gate).__name__}.forward must return Gates, got {type(gates).__name__}")
        if not gates.values.is_floating_point():  # a rule may return booleans
            gates = gates._replace(values=gates.values.to(hard_concrete.wide(encodings).dtype))
        gates.check(mask)
        always = self._always(input_ids, real_BN)
        if always is not None:
            if index is not None:
                always = always.gather(1, index.clamp_min(0)) & (index >= 0)
            always = always & mask
            open_probability = gates.open_probability
            if open_probability is not None:
                open_probability = open_probability.masked_fill(always, 1)
            gates = gates._replace(values=gates.values.masked_fill(always, 1), open_probability=open_probability)
        return gates

    def _draw(self, gates: Gates, mask_BN: Tensor, noise_key: Tensor | None) -> Draw | None:
        """How the dial's `keep` samples gates in training; the noise depends on the sentences' keys."""
        log_alpha_BN = gates.log_alpha
        if log_alpha_BN is None:
            return None  # the dial raises the error
        if noise_key is None:
            noise_BN, coin_B = torch.rand_like(log_alpha_BN), torch.rand_like(log_alpha_BN[:, 0])
        else:
            noise_BN = _keyed_noise(noise_key, mask_BN, DIAL_STREAM, log_alpha_BN)
            coin_B = hard_concrete.keyed_uniform(noise_key, DIAL_STREAM + 1)
        return Draw(
            lambda shifted_BN: self.gate.sampled(shifted_BN, noise_BN), coin_B.to(mask_BN.device) < SAMPLED_SHARE
        )

    def _dropped(
        self, gates: Gates, mask_BN: Tensor, counted_BN: Tensor, always_BN: Tensor | None, run: LayerRun | None
    ) -> Tensor:
        """[B], the number of closed test-time gates on counted rows in training, where `gates` are sampled."""
        closed_BN = self.gate.closed(gates)
        if run is not None:
            # rows that earlier samples closed have no log α here; the earlier test-time gates decide
            closed_BN = torch.where(run.mask_BN & ~run.alive_BN, False, closed_BN) | run.closed_BN
        if always_BN is not None:
            closed_BN = closed_BN & ~always_BN
        open_BN = (mask_BN & ~closed_BN).to(gates.values.dtype)
        kept_BN = keep_one(gates._replace(values=open_BN), mask_BN, self.config.l0drop.gating).values != 0
        return (counted_BN & ~kept_BN).sum(1)

    # --- forward -------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        noise_key: Tensor | None = None,
        own_loss: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The base model's forward on the gated encodings. Returns an `L0DropOutput`.

        hints: per-token tensors [B, N] by name, for rules.
        noise_key: [B], makes a sentence's gate noise a function of its key alone.
        own_loss: allows training without labels; the caller adds λ · `penalty` to its own loss.
        """
        as_dict = self.config.return_dict if return_dict is None else return_dict
        if input_ids is not None:  # some families derive missing decoder inputs from them
            kwargs["input_ids"] = input_ids
        if not self.config.l0drop.enabled:
            base = super().forward(
                attention_mask=attention_mask,
                encoder_outputs=encoder_outputs,
                labels=labels,
                return_dict=True,
                **kwargs,
            )
            zero = base.logits.new_zeros(())
            output = L0DropOutput(**{**base, "cross_entropy": base.loss, "penalty": zero, "sparsity": zero})
            return output if as_dict else output.to_tuple()
        if self.training and labels is None and not own_loss and torch.is_grad_enabled() and self._penalises:
            raise ValueError(
                "labels: training without them would lose the penalty. If you use the Trainer, set "
                "label_smoothing_factor=0: it removes the labels. In your own loop, pass own_loss=True and add "
                "model.lambda_ * output.penalty to your loss"
            )
        if encoder_outputs is None:
            self.check_coverage(attention_mask)
            names = ("inputs_embeds", "output_attentions", "output_hidden_states", *self.family.encoder_arguments)
            given = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
            if self.family.reads_audio:
                given["input_features"] = self._features_for_training(given["input_features"], attention_mask)
            encoder_outputs = self.get_encoder()(
                input_ids=input_ids, attention_mask=attention_mask, hints=hints, noise_key=noise_key, **given
            )
        elif not isinstance(encoder_outputs, L0DropEncoderOutput):
            encoder_outputs = self._gate_given(encoder_outputs, input_ids, attention_mask, hints, noise_key)
        for name in ("inputs_embeds", *self.family.encoder_arguments):
            kwargs.pop(name, None)
        plain = self.family.encoder_output(
            **{k: v for k, v in encoder_outputs.items() if k in self.family.encoder_output_fields}
        )
        bias = self._attention_bias(encoder_outputs, (labels, input_ids), kwargs)
        kwargs[self.family.bias_argument] = bias
        base = super().forward(encoder_outputs=plain, labels=labels, return_dict=True, **kwargs)
        if self.family.reads_audio and base.get("cross_attentions") is not None:
            base.cross_attentions = self._attention_at_source(base.cross_attentions, encoder_outputs)
        dropped, real = encoder_outputs.dropped.sum(), encoder_outputs.real.sum()
        if self.training:
            before = (0, 0) if self.training_counts is None else self.training_counts
            self.training_counts = (before[0] + dropped, before[1] + real)
            self._warn_if_never_steered()
        loss, l0 = base.loss, encoder_outputs.penalty.mean()
        if loss is not None and self.training:
            loss = penalised(loss, l0, self.lambda_)
        output = L0DropOutput(
            **{
                **base,
                "loss": loss,
                "cross_entropy": base.loss,
                "penalty": l0,
                "sparsity": dropped / real,
                "gates": encoder_outputs.gates,
                "layer_gates": encoder_outputs.layer_gates,
            }
        )
        return output if as_dict else output.to_tuple()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's generate, on the short memory.

        Plain `encoder_outputs` of text are gated once, before decoding; those of audio in every step, because Whisper's
        generate derives times from their length.
        """
        given = kwargs.get("encoder_outputs")
        gates_now = given is not None and not isinstance(given, L0DropEncoderOutput) and self.config.l0drop.enabled
        if gates_now and not self.family.reads_audio:
            input_ids = kwargs.get("input_ids", args[0] if args else None)
            kwargs["encoder_outputs"] = self._gate_given(
                given, input_ids, kwargs.get("attention_mask"), kwargs.pop("hints", None), None
            )
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    @staticmethod
    def _attention_at_source(attentions: tuple[Tensor, ...], memory: L0DropEncoderOutput) -> tuple[Tensor, ...]:
        """Cross-attention by encoder row, [B, H, T, N], 0 on dropped rows, on the short and the dense memory."""
        assert memory.gates is not None
        assert memory.memory_index is not None
        beams = len(memory.memory_index) // len(memory.gates.values)  # generate repeats tensors, but not gates
        kept_BN = (memory.gates.values != 0).repeat_interleave(beams, 0)
        found = at_source(attentions, memory.memory_index, kept_BN.shape[1])
        return tuple(attention_BHTN * kept_BN[:, None, None] for attention_BHTN in found)

    @property
    def _attention_implementation(self) -> str:
        # the decoder's: T5's encoder and decoder have separate configs
        return self.get_decoder().config._attn_implementation

    @property
    def _penalises(self) -> bool:
        has_penalty = self.lambda_ != 0 or self.config.l0drop.target_sparsity is not None
        return has_penalty and self.shortener is None

    def _gate_given(self, encoder_outputs: Any, input_ids: Any, mask: Any, hints: Any, noise_key: Any) -> Any:
        """Gate or shorten the outputs of a plain encoder."""
        if self.config.l0drop.layerwise or self.config.l0drop.cut_padding is not None:
            name = "layerwise gates" if self.config.l0drop.layerwise else "cut_padding"
            raise ValueError(f"encoder_outputs: with {name} they must come from this model's get_encoder()")
        if not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = self.family.encoder_output(*encoder_outputs[:3])
        if self.shortener is not None and self.shortener.needs_attention:
            raise ValueError(
                f"encoder_outputs: {type(self.shortener).__name__} needs the encoder's attention, so they must come "
                "from this model's get_encoder()"
            )
        if self.shortener is not None:
            return self._shorten(self.shortener, encoder_outputs, mask)
        return self._gate(encoder_outputs, input_ids, mask, hints, noise_key, self.current_dial, None)

    def _attention_bias(
        self, memory: L0DropEncoderOutput, lengths_from: tuple[Tensor | None, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """The memory's bias, in the dtype and shape that the family's cross-attention needs."""
        bias = memory.memory_bias
        assert bias is not None
        assert memory.last_hidden_state is not None
        if needs_bias_like_states(self._attention_implementation):
            bias = bias.to(memory.last_hidden_state.dtype)
        if self.family.full_bias:
            targets = (kwargs.get("decoder_input_ids"), kwargs.get("decoder_inputs_embeds"), *lengths_from)
            length = next(target.shape[1] for target in targets if target is not None)
            bias = bias.expand(-1, -1, length, -1)
        return bias


def _plain(part: Buildable, name: str) -> dict[str, Any]:
    """The arguments of a registered gate or shortener, for the config."""
    try:
        json.dumps(part.arguments)
    except TypeError as error:
        raise ValueError(
            f"{part.arguments_field}: the arguments of {name!r} must be plain JSON values: {error}"
        ) from None
    return dict(part.arguments)


def _padded(gates: Gates, rows: int) -> Gates:
    """Gates with closed ones up to this number of rows."""
    missing = rows - gates.values.shape[1]
    return Gates(
        *(
            None if tensor is None else nn.functional.pad(tensor, (0, missing), value=fill)
            for tensor, fill in zip(gates, (0.0, 0.0, -torch.inf), strict=True)
        )  # type: ignore[arg-type]
    )


def _keyed_noise(noise_key_B: Tensor, mask_BN: Tensor, stream: int, like: Tensor) -> Tensor:
    """[B, N], uniforms by sentence and real token, so that left padding does not change them."""
    dtype = hard_concrete.wide(like).dtype
    return hard_concrete.keyed_uniforms(noise_key_B.to(like.device), mask_BN.cumsum(1) - 1, stream, dtype)
