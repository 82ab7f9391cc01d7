"""Tiny random Whispers, and features for them: 24 encoder rows from 48 feature frames."""

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers as hf
from torch import Tensor

from tests.models.zoo import WIDTH

ROWS, FRAMES, MELS = 24, 48, 8
TEXT, EOS, START = 60, 60, 61
"""Text tokens are 0 to 59; then EOS, start, two languages, two tasks, start of a prompt, no speech, no timestamps."""
LANGUAGES = {"<|en|>": 62, "<|de|>": 63}
TASKS = {"transcribe": 64, "translate": 65}
PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = 66, 67, 68
TIMES = ROWS + 1
VOCABULARY = NO_TIMESTAMPS + 1 + TIMES

_CONFIG = hf.WhisperConfig(
    vocab_size=VOCABULARY,
    num_mel_bins=MELS,
    d_model=WIDTH,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=ROWS,
    max_target_positions=40,
    pad_token_id=EOS,
    bos_token_id=START,
    eos_token_id=EOS,
    decoder_start_token_id=START,
    dropout=0.0,
    attention_dropout=0.0,
)


def build(
    attention: str | None = None, seed: int = 0, *, multilingual: bool = True, layers: int = 3, positions: int = 40
) -> Any:
    """A random model in eval mode with peaked attention and non-zero biases. positions: of the decoder."""
    torch.manual_seed(seed)
    config = copy.deepcopy(_CONFIG)
    config.encoder_layers, config.max_target_positions = layers, positions
    if attention is not None:
        config._attn_implementation = attention
    model = hf.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
            elif "embed_positions" in name:
                if "decoder" in name:
                    parameter.normal_(0, 1.0)
            elif "embed_tokens" in name:
                parameter.normal_(0, 0.4)
            elif "conv" in name:
                parameter.normal_(0, 1.0 / parameter[0].numel() ** 0.5)
            elif parameter.dim() == 2:
                # so that outputs depend on the audio
                scale = 3.0 if name.endswith("encoder_attn.out_proj.weight") else 1.5
                parameter.normal_(0, scale / parameter.shape[1] ** 0.5)
        embedding = model.model.decoder.embed_tokens.weight
        embedding[EOS] *= 2.0
        embedding[NO_TIMESTAMPS:] *= 0.6  # without the rules for timestamps, text wins, as in a trained model
    model.generation_config = hf.GenerationConfig(
        bos_token_id=START,
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
        max_length=20,
        is_multilingual=multilingual,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        max_initial_timestamp_index=10,
        return_timestamps=False,
        suppress_tokens=[3, 7, START, PREVIOUS, NO_SPEECH, *LANGUAGES.values(), *TASKS.values()],
        begin_suppress_tokens=[5, EOS],
        alignment_heads=[[0, 1], [1, 2]],
        **({"lang_to_id": LANGUAGES, "task_to_id": TASKS} if multilingual else {}),
    )
    return model


def features(clips: int = 6, frames: int = FRAMES, seed: int = 3) -> Tensor:
    """Features of random tones, [B, mels, frames]: a few waves per clip, so that rows differ."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(frames) / FRAMES
    pitch = 1 + 9 * torch.rand(clips, MELS, 1, generator=generator)
    phase = 6.3 * torch.rand(clips, MELS, 1, generator=generator)
    noise = torch.randn(clips, MELS, frames, generator=generator)
    return torch.sin(6.3 * pitch * time + phase) + 0.3 * noise


def coverage(frames: tuple[int, ...] = (48, 30, 17, 40, 48, 6)) -> Tensor:
    """[B, frames], True where audio covers a feature frame."""
    return torch.arange(FRAMES) < torch.tensor(frames)[:, None]


@torch.no_grad()
def spread_gates(model: Any, share_closed: float = 0.5, seed: int = 6) -> Any:
    """Give a model's learned gates weights that close about this share of the rows of `features()`."""
    encoder = model.base_class.get_encoder(model)
    states = encoder(features().to(model.dtype), output_hidden_states=True)
    positions = [*model.inner_layers, None]
    for gate, position in zip((*model.inner_gates, model.gate), positions, strict=True):
        x = states.last_hidden_state if position is None else states.hidden_states[position]
        rows = x.flatten(0, 1).double()
        if gate.normalize:
            rows = torch.nn.functional.layer_norm(rows, rows.shape[-1:])
        weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weight *= 3.0 / (rows @ weight).std()
        gate.weight.copy_(weight)
        gate.bias.fill_(float(-(rows @ weight).quantile(share_closed)) - 2.398)
    return model


def extractor() -> hf.WhisperFeatureExtractor:
    """Features of windows of 0.48 seconds."""
    made = hf.WhisperFeatureExtractor(feature_size=MELS, chunk_length=FRAMES / 100)
    made.n_samples = round(made.n_samples)
    return made


def tokenizer() -> hf.PreTrainedTokenizerFast:
    """One letter or word per token."""
    words = [f" {chr(97 + i % 26)}{i}" for i in range(TEXT)]
    special = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, "<|transcribe|>", "<|translate|>"]
    special += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(TIMES)]
    vocabulary = {token: i for i, token in enumerate([*words, *special, *times])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" a0"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_next")
    model.decoder = tokenizers.decoders.Fuse()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="<|endoftext|>", additional_special_tokens=special[1:]
    )


def save(model: Any, folder: Path) -> Path:
    """A folder that `load` reads."""
    model.save_pretrained(folder)
    extractor().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tone(seconds: float, seed: int = 0, rate: int = 16_000) -> np.ndarray:
    """Two tones that change their loudness, and some noise."""
    generator = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    low, high = generator.uniform(100, 3000, 2)
    loudness = 0.5 + 0.5 * np.sin(20 * time + generator.uniform(0, 6))
    sound = 0.3 * np.sin(6.28 * low * time) * loudness + 0.2 * np.sin(6.28 * high * time) * (1 - loudness)
    return (sound + generator.normal(0, 0.01, len(time))).astype(np.float32)


def wav(seconds: float, seed: int = 0) -> bytes:
    """A sound file with `tone`."""
    import soundfile  # tests without sound files must run without it

    file = io.BytesIO()
    soundfile.write(file, tone(seconds, seed), 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()
