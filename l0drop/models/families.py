"""The supported encoder-decoder families and their differences."""

from dataclasses import dataclass
from typing import Any

import transformers as hf
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.led.modeling_led import LEDEncoderBaseModelOutput


@dataclass(frozen=True)
class Family:
    """One family.

    normalize: bring encodings to zero mean and unit variance before the gate reads them. T5's encoder ends in an RMS
        norm whose learned scale leaves outputs far from unit size; the others end in a layer norm.
    layerwise: supports gates between encoder layers: each layer ends in a norm and takes an additive mask.
    full_bias: its cross-attention needs the bias expanded to [B, 1, T, K].
    encoder_output: the class of `encoder_outputs` in its forward.
    encoder_arguments: further arguments of its encoder, in addition to ids, embeddings and mask.
    """

    base: type[hf.PreTrainedModel]
    normalize: bool = False
    layerwise: bool = False
    full_bias: bool = False
    encoder_output: type[Any] = BaseModelOutput
    encoder_arguments: tuple[str, ...] = ()

    @property
    def encoder_output_fields(self) -> frozenset[str]:
        return frozenset(self.encoder_output.__dataclass_fields__)


FAMILIES = (
    Family(hf.MarianMTModel, layerwise=True),
    Family(hf.BartForConditionalGeneration, layerwise=True),
    Family(hf.MBartForConditionalGeneration),
    Family(hf.M2M100ForConditionalGeneration),
    Family(hf.PegasusForConditionalGeneration),
    Family(hf.T5ForConditionalGeneration, normalize=True),
    Family(hf.MT5ForConditionalGeneration, normalize=True),
    Family(
        hf.LEDForConditionalGeneration,
        full_bias=True,
        encoder_output=LEDEncoderBaseModelOutput,
        encoder_arguments=("global_attention_mask",),
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
    for name in (f"max_{side}_position_embeddings", "max_position_embeddings"):
        if (positions := getattr(model.config, name, None)) is not None:
            return int(positions)
    return None
