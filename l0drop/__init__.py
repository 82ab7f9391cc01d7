"""l0drop shortens what an encoder hands to its decoder.

Importing it makes its models known to the Auto classes of transformers, and that takes as long as importing torch and
transformers. The command line alone does without: there a name is imported when it is asked for, so that help or a
mistake in a recipe is not waited for.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l0drop.core.gates import Gate, Gates, register_gate
    from l0drop.core.memory import Memory, compress
    from l0drop.decoding.engine import Engine, Generation
    from l0drop.decoding.text import load
    from l0drop.models.config import L0DropConfig
    from l0drop.models.sparsify import sparsify

__all__ = [
    "Engine",
    "Gate",
    "Gates",
    "Generation",
    "L0DropConfig",
    "Memory",
    "compress",
    "load",
    "register_gate",
    "sparsify",
]
__version__ = "0.1.0"

_HOMES = {
    "Engine": "decoding.engine",
    "Gate": "core.gates",
    "Gates": "core.gates",
    "Generation": "decoding.engine",
    "L0DropConfig": "models.config",
    "Memory": "core.memory",
    "compress": "core.memory",
    "load": "decoding.text",
    "register_gate": "core.gates",
    "sparsify": "models.sparsify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"l0drop.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Whether this process is `l0drop` or `python -m l0drop`, whose first argument is `-m` while packages load."""
    first, asked = "".join(sys.argv[:1]), [*sys.orig_argv, ""]
    if first == "-m" and "-m" in asked:
        return asked[asked.index("-m") + 1] == __name__
    return Path(first).stem == __name__


if not _is_command():
    for public in __all__:
        __getattr__(public)
