"""`load`: a text model or a speech model, by what the folder holds."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSpeechSeq2Seq

from l0drop.decoding import text
from l0drop.decoding.folder import auto_class, check_exists, locate_model
from l0drop.decoding.speech import load_speech


def load(
    dir_or_name: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> Any:
    """Load a model with its tokenizers: a `TextModel`, or a `SpeechModel` for a Whisper.

    From a run folder, a model folder, or the Hugging Face hub. device: default: a GPU if there is one. dtype: default:
    the type of the stored weights; "int8", on a CPU, rounds the weights of linear layers to 8 bits. A model without
    gates decodes densely. A run's recipe sets the defaults for generation settings, source prefix and maximum source
    length; arguments of a call override them.
    """
    return (load_speech if is_speech(dir_or_name) else text.load)(dir_or_name, device, dtype)


def is_speech(dir_or_name: str | Path) -> bool:
    """Whether the model reads audio; ValueError if there is no model."""
    name = str(dir_or_name)
    folder, _ = locate_model(name)
    if folder is None:
        check_exists(name)
    return auto_class(name, folder) is AutoModelForSpeechSeq2Seq
