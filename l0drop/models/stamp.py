"""A stamp in the weights file of an L0Drop model: the settings of config.json that decide which function it decodes.

config.json is easy to edit, and a model with another gating, activation function or number of heads decodes another
function without an error. The stamp is an entry of the metadata in the header of the safetensors file. In a sharded
model the first shard has it.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from l0drop.models.config import L0DropConfig

KEY = "l0drop"
FIELDS = (
    *("gating", "gate", "gate_args", "beta", "epsilon", "always_keep", "layerwise", "cut_padding"),
    *("shortener", "shortener_args"),
)
BASE = "config"
"""The stamp's copy of the base model's fields of config.json."""
LONGEST_HEADER = 100_000_000
"""The limit of the safetensors format, in bytes."""
_WITHOUT_EFFECT = re.compile(
    r"_.*|l0drop|model_type|architectures|auto_map|(torch_)?dtype|transformers_version|use_cache|output_\w+|return_dict\w*"
    r"|\w*drop\w*|init\w*|\w*initializer\w*|problem_type|id2label|label2id|task_specific_params|prefix"
    r"|max_(\w+_)?position_embeddings|name_or_path"
)
"""Fields of config.json that do not decide which function a model decodes, or are checked elsewhere."""


def write_stamp(folder: Path, config: L0DropConfig) -> None:
    """Add the stamp to a folder's weights. The header grows, so the file is written again."""
    file = _stamped_file(folder)
    if file is None:
        return
    header, start = _header(file)
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stamp = {**_values(config), BASE: {k: v for k, v in stored.items() if not _WITHOUT_EFFECT.fullmatch(k)}}
    header["__metadata__"] = {**header.get("__metadata__", {}), KEY: json.dumps(stamp, sort_keys=True)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    temporary = file.with_name(f".{file.name}.stamp")
    try:
        with file.open("rb") as old, temporary.open("wb") as new:
            new.write(len(text).to_bytes(8, "little") + text)
            old.seek(start)
            shutil.copyfileobj(old, new, 1 << 22)
        shutil.copymode(file, temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def read_stamp(folder: Path) -> dict[str, Any] | None:
    """The stamp of a folder's weights; None without one."""
    file = _stamped_file(folder)
    if file is None:
        return None
    try:
        stamp = json.loads(_header(file)[0].get("__metadata__", {})[KEY])
    except (KeyError, ValueError, AttributeError, TypeError):  # from_pretrained reports a damaged file
        return None
    return stamp if isinstance(stamp, dict) else None


def check_stamp(folder: Path, config: L0DropConfig) -> None:
    """Raise ValueError if the settings of config.json are not those that the weights were saved with."""
    stamp, now = read_stamp(folder) or {}, _values(config)
    _refuse(
        [_changed(name, now[name], stamp[name]) for name in FIELDS if stamp.get(name, now[name]) != now[name]], folder
    )


def check_base(folder: Path, stored: dict[str, Any]) -> None:
    """Raise ValueError if the base model's fields of config.json are not those that the weights were saved with.

    `stored` is the content of config.json. Fields that the stamp does not know are ignored.
    """
    saved = (read_stamp(folder) or {}).get(BASE, {})
    gone = [
        f"{name} is missing, the model was saved with {value!r}" for name, value in saved.items() if name not in stored
    ]
    changed = [_changed(name, stored[name], value) for name, value in saved.items() if stored.get(name, value) != value]
    _refuse(gone + changed, folder)


def _changed(name: str, now: Any, saved: Any) -> str:
    return f"{name} is {now!r}, but the model was saved with {saved!r}"


def _refuse(changes: list[str], folder: Path) -> None:
    if changes:
        raise ValueError(
            f"{folder / 'config.json'}: was changed after the model was saved ({'; '.join(changes)}), so "
            "it would decode wrongly; restore config.json"
        )


def stored_shapes(folder: Path) -> list[list[int]]:
    """The shapes of the weights in a folder's safetensors files; empty if they cannot be read."""
    shapes = []
    for file in folder.glob("model*.safetensors"):
        try:
            header, _ = _header(file)
            shapes += [[*map(int, entry["shape"])] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, AttributeError, TypeError, OSError):  # from_pretrained reports a damaged file
            return []
    return shapes


def _values(config: L0DropConfig) -> dict[str, Any]:
    values = config.to_dict()
    return json.loads(json.dumps({name: values[name] for name in FIELDS}))


def _stamped_file(folder: Path) -> Path | None:
    """The weights file that has the stamp."""
    files = [folder / "model.safetensors", *sorted(folder.glob("model-00001-of-*.safetensors"))]
    return next((file for file in files if file.is_file()), None)


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and the number of bytes before the tensors."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > LONGEST_HEADER:
            raise ValueError(f"{file}: its header is too long")
        return json.loads(opened.read(size)), 8 + size
