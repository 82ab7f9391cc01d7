"""Where a model is, and what stands beside it: weights, tokenizers, the recipe of its run."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from l0drop.data.tokenizer import TokenizerPair, load_tokenizers
from l0drop.decoding.settings import SCORING
from l0drop.extras import needed_for
from l0drop.models import sparsify as sparsify  # registers the models, so that the Auto classes load them

if TYPE_CHECKING:
    from l0drop.recipe import Recipe

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


def places(name: str) -> tuple[Path | None, Path | None]:
    """The model folder, and the run folder around it; both None for what can only be a name on the hub."""
    path = Path(name)
    if path.is_file():
        raise ValueError(f"{name}: is a file; expected a run folder, a model folder, or a name on the Hugging Face hub")
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise ValueError(f"{name}: there is no such folder")
        return None, None
    for folder in (path / "model", path):
        if (folder / "config.json").is_file():
            return folder, folder.parent if (folder.parent / "recipe.yaml").is_file() else None
    inside = sorted(file.parent.parent for file in path.glob("*/model/config.json"))
    inside += sorted(file.parent for file in path.glob("*/config.json"))
    hint = f"; there are models in {', '.join(map(str, inside[:5]))}" if inside else ""
    raise ValueError(f"{name}: no model here, expected config.json, or a run folder with model/config.json{hint}")


def load_model(name: str, folder: Path | None, dtype: torch.dtype | str) -> PreTrainedModel:
    """The model in eval mode."""
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(folder or name, dtype=dtype).eval()
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged ({error})") from error
    except OSError as error:
        if folder is not None:
            raise ValueError(f"{name}: the model cannot be read ({first_line(error)})") from error
        raise ValueError(
            f"{name}: there is no such folder, and no model of this name could be had from the Hugging Face hub "
            f"({first_line(error)})"
        ) from error
    except ValueError as error:
        if not str(error).startswith("Unrecognized configuration class"):
            raise
        raise ValueError(f"{name}: this is no encoder-decoder ({first_line(error)})") from error


def load_pair(name: str, folder: Path | None, run: Path | None, model: Any) -> TokenizerPair:
    """The tokenizers of both sides: those of the run, or those in the model folder."""
    if run is not None and (run / "tokenizer").is_dir():
        return load_tokenizers(run)
    source = load_tokenizer(name, folder or name)
    if folder is not None and (folder / "tokenizer_target").is_dir():
        return TokenizerPair(source, AutoTokenizer.from_pretrained(folder / "tokenizer_target"))
    shared = getattr(model.config, "share_encoder_decoder_embeddings", True)
    if not shared and not getattr(source, "separate_vocabs", False):
        raise ValueError(
            f"{name}: the model's two sides have vocabularies of their own, but there is no tokenizer_target/ beside it"
        )
    return TokenizerPair(source, source)


def load_tokenizer(name: str, place: Path | str, **settings: str) -> PreTrainedTokenizerBase:
    """The tokenizer at a place; `name` is what the user calls the model that it belongs to."""
    try:
        return AutoTokenizer.from_pretrained(place, **settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: no tokenizer could be loaded from beside the model ({first_line(error)})") from error


def of_recipe(run: Path | None) -> tuple[dict[str, Any], str, int | None]:
    """Generation settings, source prefix and longest source of a run."""
    if run is None:
        return {}, "", None
    with needed_for(f"reading {run / 'recipe.yaml'}"):
        from l0drop.recipe import load_recipe
    recipe = load_recipe(run / "recipe.yaml")
    return generation_of(recipe), recipe.data.source_prefix, recipe.data.max_source


def generation_of(recipe: "Recipe") -> dict[str, Any]:
    """How a run's outputs are made, in training and ever after.

    A checkpoint's generation_config has no say in what is set here; some of those that are published sample, or stop
    early.
    """
    evaluate = recipe.evaluate
    return {
        "num_beams": evaluate.beams,
        "length_penalty": evaluate.length_penalty,
        "max_new_tokens": evaluate.max_new_tokens or recipe.data.max_target,
        **SCORING,
    }


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """What from_pretrained takes; None is the dtype of the stored weights."""
    if dtype is None:
        return "auto"
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join([*DTYPES, 'int8'])}, got {dtype!r}")
        return DTYPES[dtype]
    return dtype


def fingerprint(name: str, model: PreTrainedModel) -> str:
    """Tells one model from another under the same name: a hash of its files, or the commit of a name on the hub."""
    folder, run = places(name)
    if folder is None:
        return str(getattr(model.config, "_commit_hash", None))
    endings = {".json", ".safetensors", ".bin", ".model", ".spm", ".txt"}
    inside = [folder, folder / "tokenizer_target"]
    inside += [run / "tokenizer", run / "tokenizer_target"] if run is not None else []
    digest = hashlib.sha256()
    for place in inside:
        for file in sorted(place.glob("*")) if place.is_dir() else ():
            if file.is_file() and file.suffix in endings:
                with file.open("rb") as opened:
                    digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    """An error of a library in short."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
