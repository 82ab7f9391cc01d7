"""l0drop shortens what an encoder hands to its decoder."""

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
