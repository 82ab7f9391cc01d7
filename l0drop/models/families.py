"""The supported encoder-decoder families and their differences."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import transformers as hf
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.led.modeling_led import LEDEncoderBaseModelOutput

from l0drop.models.received import POST_NORM, PRE_NORM, RELATIVE_POSITIONS, LastAttention
from l0drop.models.whisper import WhisperParts


@dataclass(frozen=True)
class Family:
    """One family.

    normalize: bring encodings to zero mean and unit variance before the gate reads them. T5's encoder ends in an RMS
        norm whose learned scale leaves outputs far from unit size; the others end in a layer norm.
    layerwise: supports gates between encoder layers: each layer takes an additive mask.
    pre_norm: its layers begin with a norm, so what they pass on has no fixed size, and gates between them normalize it.
    full_bias: its cross-attention needs the bias expanded to [B, 1, T, K].
    encoder_output: the class of `encoder_outputs` in its forward.
    encoder_arguments: further arguments of its encoder, in addition to ids, embeddings and mask.
    bias_argument: the argument of its forward that takes the memory's bias.
    auto: the Auto class that loads its models.
    parts: a class between `L0DropModel` and the base class that adapts the base to the bias.
    last_attention: its encoder's last self-attention; None if that attends within windows.
    """

    base: type[hf.PreTrainedModel]
    normalize: bool = False
    layerwise: bool = False
    pre_norm: bool = False
    full_bias: bool = False
    encoder_output: type[Any] = BaseModelOutput
    encoder_arguments: tuple[str, ...] = ()
    bias_argument: str = "attention_mask"
    auto: type[Any] = hf.AutoModelForSeq2SeqLM
    parts: type[Any] | None = None
    last_attention: LastAttention | None = None

    @property
    def reads_audio(self) -> bool:
        """Whether its inputs are features of audio instead of token ids."""
        return self.base.main_input_name == "input_features"

    def inputs_of(self, arguments: Mapping[str, Any]) -> Tensor:
        """The encoder's main input among its arguments: features, token ids, or embeddings instead of ids."""
        given = arguments.get(self.base.main_input_name)
        return arguments["inputs_embeds"] if given is None else given

    @property
    def encoder_output_fields(self) -> frozenset[str]:
        return frozenset(self.encoder_output.__dataclass_fields__)


FAMILIES = (
    Family(hf.MarianMTModel, layerwise=True, last_attention=POST_NORM),
    Family(hf.BartForConditionalGeneration, layerwise=True, last_attention=POST_NORM),
    Family(hf.MBartForConditionalGeneration, last_attention=PRE_NORM),
    Family(hf.M2M100ForConditionalGeneration, last_attention=PRE_NORM),
    Family(hf.PegasusForConditionalGeneration, last_attention=PRE_NORM),
    Family(hf.T5ForConditionalGeneration, normalize=True, last_attention=RELATIVE_POSITIONS),
    Family(hf.MT5ForConditionalGeneration, normalize=True, last_attention=RELATIVE_POSITIONS),
    Family(
        hf.LEDForConditionalGeneration,
        full_bias=True,
        encoder_output=LEDEncoderBaseModelOutput,
        encoder_arguments=("global_attention_mask",),
    ),
    Family(
        hf.WhisperForConditionalGeneration,
        layerwise=True,
        pre_norm=True,
        encoder_arguments=("input_features",),
        bias_argument="memory_bias",
        auto=hf.AutoModelForSpeechSeq2Seq,
        parts=WhisperParts,
    ),
)


def family_of(model_class: type) -> Family:
    """The family of a model class, or ValueError naming the supported ones."""
    for family in FAMILIES:
        if issubclass(model_class, family.base):
            return family
    supported = ", ".join(family.base.__name__ for family in FAMILIES)
    raise ValueError(
        f"model: {model_class.__name__} is not a supported encoder-decoder; supported: {supported} "
        "(NLLB is M2M100; ByT5 and Flan-T5 are T5)"
    )


def positions_of(model: hf.PreTrainedModel, side: str) -> int | None:
    """The number of positions of a model's encoder or decoder; None if positions are relative."""
    audio = {"encoder": "max_source_positions", "decoder": "max_target_positions"}[side]
    for name in (f"max_{side}_position_embeddings", "max_position_embeddings", audio):
        if (positions := getattr(model.config, name, None)) is not None:
            return int(positions)
    return None
