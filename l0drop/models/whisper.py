"""What Whisper needs beside the other families: a bias on its cross-attention, an encoder of the first rows of a
window, and times of words on kept rows.

Hugging Face's Whisper passes no mask to its cross-attention, but hands further keyword arguments of `forward` down to
its decoder layers. So the bias travels as the argument `memory_bias`, and the decoder layers of an L0Drop model pass it
on.

Its encoder insists on features of a whole window. So where padding is cut, the features enter whole, and the first
convolution takes the frames that the first rows need.

Shapes: B clips, k beams, N encoder rows (1,500 for 30 seconds), H heads, T tokens.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, WhisperForCausalLM
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

FRAMES_PER_ROW = 2
"""Feature frames per encoder row: the second convolution has stride 2."""
ROW_SECONDS = 0.02
"""Seconds of audio per encoder row."""


class BiasedDecoderLayer(WhisperDecoderLayer):
    """A decoder layer whose cross-attention adds `memory_bias`, [B, 1, 1, K], to its scores."""

    adapts = WhisperDecoderLayer

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        memory_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        return super().forward(
            hidden_states, attention_mask, encoder_hidden_states, encoder_attention_mask=memory_bias, **kwargs
        )


# --- the first rows of a window ------------------------------------------------------------------------------------

_FIRST_ROWS: ContextVar[Mapping[nn.Module, int] | None] = ContextVar("first_rows", default=None)
"""The modules of the encoder that this thread runs on fewer rows, and the number of rows."""


@contextmanager
def first_rows(encoder: Any, rows: int) -> Iterator[None]:
    """Inside, an encoder prepared by `cut_early` computes only the first rows of its windows."""
    token = _FIRST_ROWS.set({encoder.conv1: rows, encoder.embed_positions: rows})
    try:
        yield
    finally:
        _FIRST_ROWS.reset(token)


class _CutConvolution(nn.Conv1d):
    """Whisper's first convolution. Inside `first_rows` its output is the frames that the first K rows need.

    Row k of the second convolution reads frames 2k - 1 to 2k + 1 of the first. So K rows need 2K frames, and they need
    one frame more of the features.
    """

    adapts = nn.Conv1d

    def forward(self, input: Tensor) -> Tensor:
        rows = (_FIRST_ROWS.get() or {}).get(self)
        if rows is None:
            return super().forward(input)
        frames = FRAMES_PER_ROW * rows
        return super().forward(input[..., : frames + 1])[..., :frames]


class _CutPositions(nn.Embedding):
    """The encoder's positions; inside `first_rows` those of the first rows."""

    adapts = nn.Embedding

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input[: (_FIRST_ROWS.get() or {}).get(self)])


def cut_early(encoder: Any) -> None:
    """Prepare an encoder for `first_rows`. Its parameters stay the same objects."""
    old = encoder.conv1
    kernel = {"kernel_size": old.kernel_size, "stride": old.stride, "padding": old.padding}
    encoder.conv1 = _CutConvolution(old.in_channels, old.out_channels, **kernel, device="meta")
    encoder.conv1._parameters.update(old._parameters)
    positions = encoder.embed_positions
    encoder.embed_positions = _CutPositions(positions.num_embeddings, positions.embedding_dim, device="meta")
    encoder.embed_positions._parameters.update(positions._parameters)


# --- the model -----------------------------------------------------------------------------------------------------


class WhisperParts(PreTrainedModel):
    """Stands between `L0DropModel` and `WhisperForConditionalGeneration`; never used alone."""

    _no_split_modules = ["WhisperEncoderLayer", "WhisperDecoderLayer", "BiasedDecoderLayer"]  # noqa: RUF012

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        decoder: Any = self.get_decoder()
        decoder.layers = nn.ModuleList(
            BiasedDecoderLayer(decoder.config, index) for index in range(len(decoder.layers))
        )

    def audio_rows(self, features: Tensor) -> Tensor:
        """[B, N], True on the rows that `cut_padding` leaves: up to the end of the audio, and its margin.

        The end is seen in the features themselves: silence that pads a window gives frames that are all equal to its
        last one. So it is the same in training, in `generate`, and in every window of a long recording.
        """
        margin = math.ceil(self.config.l0drop.cut_padding / ROW_SECONDS - 1e-6)
        differs_BF = (features != features[..., -1:]).any(1)
        frames = differs_BF.shape[1]
        end_B = (differs_BF * torch.arange(1, frames + 1, device=features.device)).amax(1) + 1
        rows_B = (end_B + FRAMES_PER_ROW - 1) // FRAMES_PER_ROW + margin
        return torch.arange(frames // FRAMES_PER_ROW, device=features.device) < rows_B[:, None]

    def _features_for_training(self, input_features: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The features after SpecAugment, which the base model applies in training if its config says so."""
        return self.model._mask_input_features(input_features, attention_mask=attention_mask)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's own. With times, from features only: it derives times from the number of rows it is given."""
        timed = any(
            kwargs.get(name, getattr(self.generation_config, name, None))
            for name in ("return_timestamps", "return_token_timestamps", "return_segments")
        )
        if timed and hasattr(kwargs.get("encoder_outputs"), "memory_bias"):
            raise ValueError(
                "encoder_outputs: Whisper's generate derives times from their length, and a memory is shorter than the "
                "audio; pass input_features"
            )
        if isinstance(kwargs.get("assistant_model"), WhisperForCausalLM):
            raise ValueError(
                "assistant_model: a WhisperForCausalLM would read this model's short memory without its bias; pass a "
                "model with an encoder of its own, or the L0Drop model as the assistant of a dense one"
            )
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _prepare_decoder_input_ids_for_generation(
        self, batch_size: int, model_input_name: str, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Hugging Face's own, but prompts stay as they are: it knows Whisper by the type of its config alone."""
        given = model_kwargs.pop("decoder_input_ids", None)
        if given is not None:
            return given, model_kwargs
        return super()._prepare_decoder_input_ids_for_generation(  # type: ignore[misc]
            batch_size, model_input_name, model_kwargs, *args, **kwargs
        )

    def _extract_token_timestamps(
        self,
        generate_outputs: Any,
        alignment_heads: Any,
        time_precision: float = 0.02,
        num_frames: Any = None,
        num_input_ids: int | None = None,
    ) -> Tensor:
        """[B, T], the time of each token, aligned on the rows that the decoder saw.

        Attentions have one column per encoder row; those of dropped rows are 0. Hugging Face's alignment runs on the
        other columns, clip by clip, and its positions are mapped back to encoder rows.
        """
        align = super()._extract_token_timestamps  # type: ignore[misc]
        seen_BN = torch.stack([step[0].flatten(1, 2).amax(1) > 0 for step in generate_outputs.cross_attentions]).any(0)
        if bool(seen_BN.all()):
            return align(generate_outputs, alignment_heads, time_precision, num_frames, num_input_ids)
        sequences, indices = generate_outputs.sequences, generate_outputs.get("beam_indices")
        clips = len(sequences)
        beams = len(seen_BN) // clips
        times = sequences.new_zeros(sequences.shape, dtype=torch.float32)
        for clip in range(clips):
            first = clip * beams
            rows_K = seen_BN[first].nonzero().flatten()
            if num_frames is not None:
                frames = int(num_frames if isinstance(num_frames, int) else num_frames[clip])
                rows_K = rows_K[rows_K < frames // FRAMES_PER_ROW]
            if not len(rows_K):
                continue
            own = {
                "sequences": sequences[clip : clip + 1],
                "cross_attentions": tuple(
                    tuple(layer[first : first + beams][..., rows_K] for layer in step)
                    for step in generate_outputs.cross_attentions
                ),
            }
            if indices is not None:
                own["beam_indices"] = torch.where(indices[clip : clip + 1] < 0, -1, indices[clip : clip + 1] - first)
            (aligned_T,) = align(type(generate_outputs)(**own), alignment_heads, time_precision, None, num_input_ids)
            start = num_input_ids or 0
            position_T = (aligned_T[start:] / time_precision).round().long()
            times_T = rows_K.to(position_T.device)[position_T] * time_precision
            end = min(times.shape[1], start + len(times_T))
            times[clip, start:end] = times_T[: end - start]
            times[clip, end:] = times_T[-1] if len(times_T) else 0
        return times


def at_source(attentions: tuple[Tensor, ...], index_BK: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Attentions to memory rows [B, H, T, K] as attentions to encoder rows [B, H, T, N], 0 on dropped ones."""
    real_BK = index_BK >= 0
    found = []
    for attention_BHTK in attentions:
        B, H, T, _ = attention_BHTK.shape
        where = index_BK.clamp_min(0)[:, None, None].expand(-1, H, T, -1)
        kept = attention_BHTK * real_BK[:, None, None]
        found.append(attention_BHTK.new_zeros(B, H, T, rows).scatter_add(3, where, kept))
    return tuple(found)
