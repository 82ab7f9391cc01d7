"""Check a model folder's JSON files before the model is built.

A broken field would otherwise end deep inside a library, take all memory, or build another model without a word.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from l0drop.core.registry import UnregisteredError
from l0drop.models.stamp import check_base, stored_shapes

MAX_LAYERS = 1_000
MAX_POSITIONS = 1_000_000
MAX_VOCABULARY = 5_000_000
MAX_WIDTH = 1_000_000
"""Limits of sizes in config.json, where the weights do not set a lower one."""

_LAYERS = re.compile(r"(encoder|decoder)_layers|num_(hidden_|encoder_|decoder_)?layers")
_HEADS = re.compile(r"(encoder|decoder)_attention_heads|num_heads")
_WIDTHS = re.compile(r"d_model|d_ff|d_kv|(encoder|decoder)_ffn_dim")
_VOCABULARIES = re.compile(r"(decoder_)?vocab_size")
_POSITIONS = re.compile(r"max_(\w+_)?position_embeddings|max_(source|target)_positions")
_RATES = re.compile(r"\w*(dropout|layerdrop|dropout_rate)")
_SPREADS = re.compile(r"init_std|initializer_\w+")
_TOKENS = re.compile(r"\w+_token_id")
_ACTIVATIONS = ("activation_function", "dense_act_fn")


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model folder; ValueError names the file if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON ({error}); save or copy the model again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(content).__name__}; save or copy the model again")
    return content


def check_config(folder: Path) -> None:
    """Raise ValueError with the file and the field if config.json was changed, or describes no model."""
    file = folder / "config.json"
    stored = read_object(file)
    check_base(folder, stored)
    for name, value in stored.items():
        if fault := _fault(name, value, folder, stored):
            raise ValueError(f"{file}: {fault}; restore the file")
    try:
        AutoConfig.from_pretrained(folder)
    except UnregisteredError as error:
        raise UnregisteredError(f"{file}: l0drop.{error}") from error
    except Exception as error:  # the libraries' checks of fields have many classes
        raise ValueError(f"{file}: cannot be used ({reason(error)}); restore the file") from error


def reason(error: BaseException) -> str:
    """A library's error message on one line; of a chain of lines the last one says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines and lines[0].startswith("Validation error") else (lines or [""])[0]
    return said.removeprefix("TypeError: ") or type(error).__name__


def _fault(name: str, value: Any, folder: Path, stored: dict[str, Any]) -> str | None:
    """The problem with a field of config.json, apart from its type, which its config class checks."""
    if name == "l0drop" and not isinstance(value, dict):
        return f"l0drop: expected an object, got {value!r}"
    if name == "model_type" and (not isinstance(value, str) or value not in CONFIG_MAPPING):
        return f"model_type: expected a kind of model that transformers knows, got {value!r}"
    if name in _ACTIVATIONS and isinstance(value, str) and value not in ACT2FN:
        return f"{name}: transformers has no activation function {value!r}"
    if name in ("dtype", "torch_dtype") and value is not None:
        kind = getattr(torch, str(value).removeprefix("torch."), None)
        return None if isinstance(kind, torch.dtype) else f"{name}: expected the name of a torch dtype, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if _RATES.fullmatch(name) and not 0 <= value <= 1:
        return f"{name}: expected a rate from 0 to 1, got {value}"
    if _SPREADS.fullmatch(name) and not 0 <= value < math.inf:
        return f"{name}: expected a number that is not negative, got {value}"
    largest = _largest(name, folder)
    if largest is not None and not (math.isfinite(value) and value == int(value) and 1 <= value <= largest):
        return f"{name}: expected a whole number from 1 to {largest}, got {value}"
    width = stored.get("d_model")
    if _HEADS.fullmatch(name) and "d_kv" not in stored and isinstance(width, int) and width % value:
        return f"{name}: d_model, {width}, cannot be divided into {value} heads"
    if _TOKENS.fullmatch(name) and not 0 <= value < MAX_VOCABULARY:
        return f"{name}: expected a token id, got {value}"
    return None


def _largest(name: str, folder: Path) -> int | None:
    """The largest value of a size that the weights allow; None for a field that is no size."""
    if _POSITIONS.fullmatch(name):
        return MAX_POSITIONS
    if _VOCABULARIES.fullmatch(name):
        return MAX_VOCABULARY
    if _LAYERS.fullmatch(name):
        return min(MAX_LAYERS, len(stored_shapes(folder)) or MAX_LAYERS)
    if _HEADS.fullmatch(name) or _WIDTHS.fullmatch(name):
        return max((max(shape, default=1) for shape in stored_shapes(folder)), default=MAX_WIDTH)
    return None
