"""From a source to the decoder's memory: the encoder, then the gate or the shortener.

    encoder ─ encodings ─ gate ─ Gates ─┬─ training, dense: full length, gated ─▶ decoder
                                        └─ eval: compressed once ─▶ decoder

    encoder ─ encodings ─ shortener ─ Memory ─▶ decoder      (if the config names one: in training and eval, no gates)

Shapes: B sentences, N source positions, K memory rows, D model width.
"""

import functools
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from l0drop.core import hard_concrete
from l0drop.core.dial import Dial, Dials, Draw
from l0drop.core.gates import NOISE, STATES, Gate, Gates
from l0drop.core.memory import Memory, dense_memory, keep_one, real_tokens, short_memory
from l0drop.core.penalty import penalty
from l0drop.core.shorteners import Shortener
from l0drop.models.attention import check_adds_bias
from l0drop.models.config import L0DropConfig
from l0drop.models.dial_context import current_dial
from l0drop.models.families import Family
from l0drop.models.layerwise import LayerRun
from l0drop.models.outputs import L0DropEncoderOutput
from l0drop.models.received import attention_received, noting_last_input
from l0drop.models.whisper import FRAMES_PER_ROW, first_rows

DIAL_STREAM = 1 << 21
"""The first stream of keyed noise for the dial in training; gates use lower ones."""
SAMPLED_SHARE = 0.5
"""The share of sentences whose gates are sampled when the dial's `keep` acts in training."""


class GatedEncoder:
    """The encoder followed by the gate, as `get_encoder` returns it. It owns no parameters."""

    _model: "Encoding"
    _encoder: nn.Module

    def __init__(self, model: "Encoding", encoder: nn.Module) -> None:
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


class Encoding(PreTrainedModel):
    """The part of `L0DropModel` from a source to the memory of the decoder."""

    family: Family
    base_class: type[PreTrainedModel]
    gate: Gate
    shortener: Shortener | None
    inner_gates: nn.ModuleList
    inner_layers: tuple[int, ...]
    """The layer that each inner gate follows, counted from 1; 0 is before the first."""
    audio_rows: Any  # of the parts of a family that reads audio
    _dial_key: object
    """Identifies the model and its views, not its copies."""
    _fixed: list[nn.Parameter] | None = None
    """The parameters that `fix_gates` has excluded from training."""

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        encoder = super().get_encoder(*args, **kwargs)
        return GatedEncoder(self, encoder) if self.config.l0drop.enabled else encoder

    @property
    def current_dial(self) -> Dial | Dials:
        """The innermost dial that this thread or task has set for the model."""
        return current_dial(self._dial_key)

    @property
    def _attention_implementation(self) -> str:
        # the decoder's: T5's encoder and decoder have separate configs
        return self.get_decoder().config._attn_implementation

    @property
    def has_fixed_gates(self) -> bool:
        """Whether `fix_gates` is in effect."""
        return self._fixed is not None

    def source_rows(self, attention_mask: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
        """[B, N] twice: the rows of the source, and those that sparsity counts.

        For text both are the real tokens. Whisper has no padding: all rows are real, and those that audio covers count,
        as far as `attention_mask` says which. `like` is the encoder's main input, or a tensor [B, N, ...].
        """
        if not self.family.reads_audio:
            mask_BN = real_tokens(attention_mask, like)
            return mask_BN, mask_BN
        rows = self.config.max_source_positions
        real_BN = torch.ones(len(like), rows, dtype=torch.bool, device=like.device)
        # generate passes the mask of the whole recording, which says nothing about one window
        if attention_mask is None or attention_mask.shape != (len(like), rows * FRAMES_PER_ROW):
            return real_BN, real_BN
        return real_BN, attention_mask[:, ::FRAMES_PER_ROW].to(like.device).bool()

    def check_coverage(self, attention_mask: Tensor | None) -> None:
        """Raise ValueError unless the mask of a Whisper has one entry per feature frame of a window."""
        frames = self.config.max_source_positions * FRAMES_PER_ROW if self.family.reads_audio else None
        if frames is not None and attention_mask is not None and attention_mask.shape[1:] != (frames,):
            raise ValueError(
                f"attention_mask: expected one entry per feature frame, [B, {frames}], got shape "
                f"{tuple(attention_mask.shape)}; a feature extractor returns it with return_attention_mask=True"
            )

    def _always(self, input_ids: Tensor | None, mask_BN: Tensor) -> Tensor | None:
        """[B, N], True on real tokens of `always_keep`; None if there are none to look for."""
        always_keep = self.config.l0drop.always_keep
        if not always_keep:
            return None
        if input_ids is None:
            raise ValueError("always_keep: token ids are needed to know which tokens to keep; pass input_ids")
        return torch.isin(input_ids, torch.tensor(always_keep, device=input_ids.device)) & mask_BN

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
