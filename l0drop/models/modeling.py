"""Hugging Face encoder-decoders with a gate, or another shortener, between encoder and decoder.

`sparsify(model)` returns an `L0Drop<Base>` model: a subclass of the base model's class that overrides `get_encoder`
(encoding.py) and `forward`. It inherits state-dict keys, tied weights, generation, saving, the Auto classes and the use
in a Trainer.

The short memory is passed on as `encoder_outputs`, with its bias as a field, so `generate` expands both for its beams.
The decoder takes the bias as an additive attention mask.

Shapes: B sentences, N source positions, K memory rows, D model width.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from l0drop.core.gates import Gate
from l0drop.core.penalty import penalised
from l0drop.core.registry import Buildable
from l0drop.core.shorteners import Shortener
from l0drop.models import building
from l0drop.models.adopt import adopt_parameters
from l0drop.models.attention import needs_bias_like_states
from l0drop.models.card import write_card
from l0drop.models.config import L0DropConfig
from l0drop.models.controls import Controls
from l0drop.models.loading import GATE_NAMES, check_weights
from l0drop.models.outputs import L0DropEncoderOutput, L0DropOutput
from l0drop.models.stamp import check_base, check_stamp, write_stamp
from l0drop.models.whisper import at_source


class L0DropModel(Controls):
    """Mixin for `L0Drop<Base>` classes. It comes first in their bases and is never used alone."""

    _features_for_training: Any  # of the parts of a family that reads audio
    accepts_loss_kwargs = False  # the base losses ignore num_items_in_batch, so the Trainer must divide
    _keep_in_fp32_modules_strict = {"gate", "inner_gates", "shortener"}  # noqa: RUF012

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        l0drop: L0DropConfig = config.l0drop
        self.shortener = building.build_shortener(config, self.family)
        self.gate = building.build_gate(config, self.family)
        self.inner_gates = nn.ModuleList()
        self.inner_layers = ()
        encoder = self.base_class.get_encoder(self)
        if l0drop.layerwise:
            self.inner_layers = building.make_room_for_gates(encoder, config, self.family)
            self.inner_gates.extend(building.build_gate(config, self.family, layer) for layer in self.inner_layers)
        if l0drop.cut_padding is not None:
            building.cut_before_layers(encoder, config, self.family)
        self.set_schedule()
        self._dial_key = object()
        self.post_init()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "gate" and isinstance(value, Gate):
            building.check_reads(value, self.config)
        is_built = "gate" in self.__dict__.get("_modules", {})
        if is_built and name in ("gate", "shortener") and isinstance(value, Buildable):
            building.check_replacement(name, self.shortener)
            if isinstance(value, Shortener):
                building.check_attention(value, self.config, self.family)
            value.to(self.device).train(self.training)  # as the gate or shortener that it replaces
        super().__setattr__(name, value)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize gates, shorteners and their submodules as their constructors do, not like the base's layers."""
        parts = [part for part in self.modules() if isinstance(part, Buildable)]
        if not building.has_initialized(parts, module, building.gate_defaults(self.config, self.family)):
            super()._init_weights(module)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Hugging Face's own, which also writes a model card (README.md) if the folder has none."""
        building.describe(self.gate, self.shortener, self.config, self.family)
        super().save_pretrained(save_directory, *args, **kwargs)
        if args[0] if args else kwargs.get("is_main_process", True):
            write_stamp(Path(save_directory), self.config.l0drop)
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
    def _penalises(self) -> bool:
        has_penalty = self.lambda_ != 0 or self.config.l0drop.target_sparsity is not None
        return has_penalty and self.shortener is None

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
