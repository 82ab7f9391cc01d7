"""Check that a loaded model has the weights of its files: none missing, unused or of another shape, all finite."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

NAMED = 4
"""The number of weights that an error names."""

GATE_NAMES = ("gate.", "inner_gates.", "shortener.")

_HARMLESS = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)$")
"""Leftovers of fairseq in published checkpoints."""


def check_weights(name: str, model: PreTrainedModel, info: Mapping[str, Any], optional: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless every weight of the model comes from its files and every stored weight is used.

    `info` is the loading info of `from_pretrained`, which has no entry for tied weights that are stored once. Position
    tables that the model computes may be stored. Weights whose names begin with one of `optional` are not checked.
    """
    computed = {buffer for buffer, _ in model.named_buffers()}
    missing = [key for key in info["missing_keys"] if not key.startswith(optional)]
    unexpected = [
        key
        for key in info["unexpected_keys"]
        if key not in computed and not _HARMLESS.search(key) and not key.startswith(optional)
    ]
    misshapen = [_shapes(*entry) for entry in info["mismatched_keys"]]
    problems = [
        _listed(keys, problem)
        for keys, problem in (
            (missing, "missing in the weights file"),
            (unexpected, "in the weights file but not in the model"),
            (misshapen, "of another shape"),
        )
        if keys
    ]
    if problems:
        raise ValueError(
            f"{name}: the weights do not belong to config.json ({'; '.join(problems)}); one of the files was "
            "changed or is incomplete: save or copy the model again"
        )


def check_kinds(name: str, folder: Path, model: PreTrainedModel) -> None:
    """Raise ValueError if a weight is stored as whole numbers, which `from_pretrained` converts without a word."""
    floating = {key for key, weight in model.state_dict().items() if weight.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for key in floating.intersection(stored.keys()):
                kind = stored.get_slice(key).get_dtype()
                if not kind.startswith(("F", "BF")):
                    raise ValueError(
                        f"{name}: the weight {key} is stored as {kind} and not as floating-point numbers; the file is "
                        "damaged: save or copy the model again"
                    )


@torch.no_grad()
def check_finite(name: str, model: PreTrainedModel) -> None:
    """Raise ValueError if a weight is NaN or infinite; the output would be blank lines or garbage."""
    for key, weight in model.state_dict().items():
        # a bias on the logits may exclude tokens
        fine = weight < torch.inf if key.endswith("final_logits_bias") else weight.isfinite()
        if not bool(fine.all()):
            kind = str(weight.dtype).removeprefix("torch.")
            half = " or load it with dtype float32" if weight.dtype in (torch.float16, torch.bfloat16) else ""
            raise ValueError(
                f"{name}: the weight {key} has NaN or infinite values in {kind}; the training diverged or the file is "
                f"damaged: save or copy the model again{half}"
            )


def _shapes(key: str, stored: Any, expected: Any) -> str:
    return f"{key} {list(stored)} instead of {list(expected)}"


def _listed(keys: Any, problem: str) -> str:
    keys = sorted(keys)
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"{problem}: {', '.join(keys[:NAMED])}{more}"
