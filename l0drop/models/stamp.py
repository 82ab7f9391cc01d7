"""A stamp in the weights file of an L0Drop model: the settings of config.json that decide which function it decodes.

config.json is easy to edit, and a model with another gating decodes another function without an error. The stamp is an
entry of the metadata in the header of the safetensors file. In a sharded model the first shard has it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from l0drop.models.config import L0DropConfig

KEY = "l0drop"
FIELDS = ("gating", "gate", "gate_args", "beta", "epsilon", "always_keep", "layerwise")
LONGEST_HEADER = 100_000_000
"""The limit of the safetensors format, in bytes."""


def write_stamp(folder: Path, config: L0DropConfig) -> None:
    """Add the stamp to a folder's weights. The header grows, so the file is written again."""
    file = _stamped_file(folder)
    if file is None:
        return
    header, start = _header(file)
    header["__metadata__"] = {**header.get("__metadata__", {}), KEY: json.dumps(_values(config), sort_keys=True)}
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
    changed = [
        f"{name} is {now[name]!r}, but the model was saved with {stamp[name]!r}"
        for name in FIELDS
        if name in stamp and stamp[name] != now[name]
    ]
    if changed:
        raise ValueError(
            f"{folder / 'config.json'}: was changed after the model was saved ({'; '.join(changed)}), so "
            "it would decode wrongly; restore config.json"
        )


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
