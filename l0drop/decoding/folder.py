"""Find a model and load it with its tokenizers and the recipe of its run."""

import hashlib
import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import torch
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.core.registry import UnregisteredError
from l0drop.data.tokenizer import TokenizerPair, load_tokenizers, read_tokenizer
from l0drop.decoding.settings import SCORING, check_stored_settings
from l0drop.extras import needed_for
from l0drop.models import sparsify as sparsify  # registers the models, so that the Auto classes load them
from l0drop.models.config_file import check_config, read_object, reason
from l0drop.models.families import FAMILIES
from l0drop.models.loading import check_finite, check_kinds, check_weights
from l0drop.models.modeling import L0DropModel
from l0drop.models.stamp import read_stamp
from l0drop.runs.run import RunFolder

if TYPE_CHECKING:
    from l0drop.recipe import Evaluate, Recipe

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


class OtherInputError(ValueError):
    """The model reads another kind of input. `remedy` tells an interface, in a word, what the user can do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def locate_model(name: str) -> tuple[Path | None, Path | None]:
    """The model folder and the run folder that contains it; both None for a name on the Hugging Face hub."""
    path = Path(name)
    if path.is_file():
        raise ValueError(f"{name}: is a file; expected a run folder, a model folder, or a name on the Hugging Face hub")
    if not path.is_dir():
        if _looks_like_path(name):
            raise ValueError(f"{name}: there is no such folder{_suggestion(path)}")
        return None, None
    for folder in (RunFolder(path).model, path):
        if (folder / "config.json").is_file():
            return folder, folder.parent if RunFolder(folder.parent).recipe.is_file() else None
    inside = sorted(file.parent.parent for file in path.glob("*/model/config.json"))
    inside += sorted(file.parent for file in path.glob("*/config.json"))
    hint = f"; there are models in {', '.join(map(str, inside[:5]))}" if inside else ""
    raise ValueError(f"{name}: no model here, expected config.json, or a run folder with model/config.json{hint}")


def _looks_like_path(name: str) -> bool:
    """Whether a missing folder is meant: a name on the hub is `model` or `owner/model`, in no local folder `owner`."""
    path = Path(name)
    if path.is_absolute() or name.startswith((".", "~")) or name.endswith("/") or "\\" in name:
        return True
    return len(path.parts) > 2 or (len(path.parts) == 2 and path.parent.is_dir())


def _suggestion(path: Path) -> str:
    """A folder with a similar name next to the missing one."""
    present = [other.name for other in path.parent.iterdir() if other.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, present, 1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def load_model(name: str, folder: Path | None, dtype: torch.dtype | str) -> PreTrainedModel:
    """The model in eval mode, from its folder, or from the hub if `folder` is None.

    Raises ValueError if weights are missing, unused, misshapen, no floating-point numbers or not finite: the output
    would be garbage.
    """
    if folder is None:
        _ask_hub(name)
    else:
        check_config(folder)
        check_stored_settings(folder / "generation_config.json")
    try:
        model, info = auto_class(name, folder).from_pretrained(
            folder or name, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged ({error})") from error
    except OSError as error:
        if folder is not None:
            raise ValueError(f"{name}: the model cannot be read ({first_line(error)})") from error
        raise ValueError(f"{name}: loading it from the Hugging Face hub failed ({first_line(error)})") from error
    except UnregisteredError:
        raise
    except Exception as error:  # whatever a broken file causes in the libraries
        if str(error).startswith("Unrecognized configuration class"):
            raise ValueError(f"{name}: is not an encoder-decoder ({first_line(error)})") from error
        if is_out_of_memory(error):
            raise ValueError(f"{name}: not enough memory to load the model ({first_line(error)})") from error
        if isinstance(error, ValueError) and name in str(error):
            raise
        raise ValueError(f"{name}: the model cannot be loaded ({reason(error)}); save or copy it again") from error
    check_weights(name, model, info)
    if folder is not None:
        check_kinds(name, folder, model)
    if folder is not None and not isinstance(model, L0DropModel) and read_stamp(folder) is not None:
        raise ValueError(
            f"{folder / 'config.json'}: its model_type has no gates, but the model was saved with gates; restore it"
        )
    check_finite(name, model)
    return model.eval()


def auto_class(name: str, folder: Path | None) -> Any:
    """The Auto class for the model in a folder, or on the hub if `folder` is None."""
    if folder is not None:
        stored = read_object(folder / "config.json")
    else:
        try:
            stored, _ = PreTrainedConfig.get_config_dict(name)
        except OSError:  # from_pretrained says why
            stored = {}
    kind = str(stored.get("model_type")).removeprefix("l0drop_").removeprefix("entmax_")
    autos = {family.base.config_class.model_type: family.auto for family in FAMILIES}  # type: ignore[union-attr]
    return autos.get(kind, AutoModelForSeq2SeqLM)


def place(model: PreTrainedModel, name: str, device: str | torch.device | None) -> None:
    """Move a model to a device; default: a GPU if there is one."""
    device = _own_device() if device is None else device
    if str(device).startswith("meta"):
        raise ValueError("`device`: meta holds no numbers, so nothing can be decoded there; use cpu or a GPU")
    try:
        model.to(device)  # type: ignore[arg-type]
    except Exception as error:  # unknown names, missing GPUs, missing backends: each has its own class
        if is_out_of_memory(error):
            raise ValueError(f"`device`: {device} has not enough memory for {name} ({first_line(error)})") from error
        raise ValueError(f"`device`: {device} cannot be used ({first_line(error)})") from error


def _own_device() -> str:
    """A GPU if there is one: with several processes, each its own."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


def check_exists(name: str, file: str = "config.json") -> None:
    """Raise ValueError unless `name` is a folder, or a repository on the hub."""
    if not Path(name).is_dir():
        locate_model(name)  # reports names that can only be paths
        _ask_hub(name, file)


def _ask_hub(name: str, file: str = "config.json") -> None:
    """Ask the hub once for a model that is not in the local cache; `from_pretrained` would retry for half a minute."""
    missing = f"{name}: there is no such folder, and"
    try:
        if isinstance(huggingface_hub.try_to_load_from_cache(name, file), str):
            return
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file))
    except HFValidationError as error:
        raise ValueError(f"{missing} this is not a valid name on the Hugging Face hub") from error
    except EntryNotFoundError:
        return  # the model exists; from_pretrained reports the missing file
    except GatedRepoError as error:
        raise ValueError(f"{missing} access to this model on the Hugging Face hub must be requested there") from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{missing} the Hugging Face hub has no model of this name (for a private one, log in with `hf auth login`)"
        ) from error
    except Exception as error:  # every HTTP library has its own classes for connection errors
        raise ValueError(f"{missing} the Hugging Face hub cannot be reached ({first_line(error)})") from error


def load_pair(name: str, folder: Path | None, run: Path | None, model: Any) -> TokenizerPair:
    """The tokenizers of both sides: those of the run, or those in the model folder."""
    if run is not None and RunFolder(run).tokenizer.is_dir():
        return load_tokenizers(run)
    source = read_tokenizer(folder or name)
    if folder is not None and (folder / "tokenizer_target").is_dir():
        return TokenizerPair(source, read_tokenizer(folder / "tokenizer_target"))
    shared = getattr(model.config, "share_encoder_decoder_embeddings", True)
    if not shared and not getattr(source, "separate_vocabs", False):
        raise ValueError(
            f"{name}: source and target have separate vocabularies, but the model folder has no tokenizer_target/"
        )
    return TokenizerPair(source, source)


def check_vocabulary(model: PreTrainedModel, tokenizers: TokenizerPair, name: str) -> None:
    """Raise ValueError if the tokenizer has ids that the encoder has no embedding for."""
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    largest = max(tokenizers.source.get_vocab().values())
    if largest >= rows:
        raise ValueError(
            f"{name}: the model's vocabulary has {rows} entries, but the tokenizer has ids up to {largest}; "
            "they do not belong together: restore tokenizer_config.json or copy the model again"
        )


def recipe_settings(run: Path | None) -> tuple[dict[str, Any], str, int | None]:
    """Generation settings, source prefix and maximum source length of a run."""
    if run is None:
        return {}, "", None
    file = RunFolder(run).recipe
    with needed_for(f"reading {file}"):
        from l0drop.recipe import load_recipe
    recipe = load_recipe(file)
    return generation_of(recipe), recipe.data.source_prefix, recipe.data.max_source


def generation_of(recipe: "Recipe") -> dict[str, Any]:
    """The generation settings of a run, in training and later."""
    return generation_settings(recipe.evaluate, recipe.data.max_target)


def generation_settings(evaluate: "Evaluate", max_target: int) -> dict[str, Any]:
    """A recipe's section as generation settings; targets have at most `max_target` tokens.

    They take precedence over a checkpoint's generation_config: some published ones sample or stop early.
    """
    return {
        "num_beams": evaluate.beams,
        "length_penalty": evaluate.length_penalty,
        "max_new_tokens": evaluate.max_new_tokens or max_target,
        **SCORING,
    }


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """The `dtype` argument of from_pretrained; None stands for the dtype of the stored weights."""
    if dtype is None:
        return "auto"
    known: Any = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if known not in DTYPES.values():
        raise ValueError(f"`dtype`: expected one of {', '.join([*DTYPES, 'int8'])}, got {dtype!r}")
    return known


def fingerprint(name: str, model: PreTrainedModel) -> str:
    """Identifies a model independently of its name: a hash of its files, or its commit on the hub."""
    folder, run = locate_model(name)
    if folder is None:
        return str(getattr(model.config, "_commit_hash", None))
    endings = {".json", ".safetensors", ".bin", ".model", ".spm", ".txt"}
    inside = [folder, folder / "tokenizer_target"]
    inside += [RunFolder(run).tokenizer, RunFolder(run).target_tokenizer] if run is not None else []
    digest = hashlib.sha256()
    for path in inside:
        for file in sorted(path.glob("*")) if path.is_dir() else ():
            if file.is_file() and file.suffix in endings:
                with file.open("rb") as opened:
                    digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    """The first line of a library's error message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
