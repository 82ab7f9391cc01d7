"""The compiled path of a model from its encodings to the decoder's memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from l0drop.core.gates import Gates
from l0drop.models.modeling import L0DropModel
from l0drop.models.outputs import L0DropEncoderOutput


class CompiledGate:
    """A model's gate, penalty and memory, compiled for all shapes. Not for gates between layers.

    options: the compiler's.
    """

    PASSED = ("hidden_states", "attentions", "global_attentions")
    TENSORS = ("last_hidden_state", "memory_bias", "memory_index", "penalty", "dropped", "real")

    def __init__(self, model: L0DropModel, options: dict[str, Any]) -> None:
        self.model = model
        gate: Any = model._gate

        def tensors(outputs: Any, *others: Any) -> tuple[Any, ...]:
            memory = gate(outputs, *others, None)
            assert memory.gates is not None
            values, open_probability, log_alpha = memory.gates
            return tuple(getattr(memory, name) for name in self.TENSORS), (values, open_probability, log_alpha)

        self.tensors = torch.compile(tensors, dynamic=True, options=options)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the model runs the compiled code."""
        self.model.__dict__["_gate"] = self._gate
        try:
            yield
        finally:
            del self.model.__dict__["_gate"]

    def _gate(self, outputs: Any, *others: Any) -> L0DropEncoderOutput:
        tensors, gates = self.tensors(outputs, *others[:-1])
        passed = {name: getattr(outputs, name, None) for name in self.PASSED}
        return L0DropEncoderOutput(**dict(zip(self.TENSORS, tensors, strict=True)), **passed, gates=Gates(*gates))
