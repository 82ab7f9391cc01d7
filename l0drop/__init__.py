"""l0drop drops the encoder outputs that a decoder does not need, inside Hugging Face encoder-decoders.

`import l0drop` registers its models with the Auto classes of transformers, so it takes as long as importing torch and
transformers. The command line skips that, so that help texts and mistakes in a recipe show at once. Public names are
imported on first use.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l0drop.core.gates import Gate, Gates, register_gate
    from l0drop.core.memory import Memory, compress
    from l0drop.core.penalty import SteeredLambda
    from l0drop.decoding.engine import Engine, Generation
    from l0drop.decoding.loading import load
    from l0drop.models.config import L0DropConfig
    from l0drop.models.sparsify import sparsify
    from l0drop.training.steer_callback import SteerCallback

__all__ = [
    "Engine",
    "Gate",
    "Gates",
    "Generation",
    "L0DropConfig",
    "Memory",
    "SteerCallback",
    "SteeredLambda",
    "compress",
    "load",
    "register_gate",
    "sparsify",
]
__version__ = "0.1.0"

_MODULES = {
    "Engine": "decoding.engine",
    "Gate": "core.gates",
    "Gates": "core.gates",
    "Generation": "decoding.engine",
    "L0DropConfig": "models.config",
    "Memory": "core.memory",
    "SteerCallback": "training.steer_callback",
    "SteeredLambda": "core.penalty",
    "compress": "core.memory",
    "load": "decoding.loading",
    "register_gate": "core.gates",
    "sparsify": "models.sparsify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"l0drop.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _is_command_line() -> bool:
    """Whether this process is `l0drop` or `python -m l0drop` (where sys.argv[0] is `-m` while packages load)."""
    program, arguments = "".join(sys.argv[:1]), [*sys.orig_argv, ""]
    if program == "-m" and "-m" in arguments:
        return arguments[arguments.index("-m") + 1] == __name__
    return Path(program).stem == __name__


if not _is_command_line():
    import_module("l0drop.models.sparsify")
