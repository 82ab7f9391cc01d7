"""Compiled layers and gate, active inside a `with` block only."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from l0drop.models.compiled_gate import CompiledGate
from l0drop.models.modeling import L0DropModel

OPTIONS: dict[str, Any] = {
    # a step runs hundreds of kernels, and checking their inputs takes as long as launching them
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
    # the cache on disk ignores sizes, so it would return code that another run compiled at its batches
    "fx_graph_cache": False,
}
"""Compiler options."""


class Compiled:
    """The layers of a model and its gate, compiled separately for all shapes.

    Layers of a kind share their code, so a model with 6 + 6 layers compiles two.
    """

    def __init__(self, model: Any) -> None:
        self.calls: dict[nn.Module, Any] = {}
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True, options=OPTIONS)
                self.calls[layer] = layer._compiled_call_impl
                layer._compiled_call_impl = None
        # gates between layers are called inside the encoder's loop
        alone = isinstance(model, L0DropModel) and not model.config.l0drop.layerwise
        self.gate = CompiledGate(model, OPTIONS) if alone else None
        self.steps: list[int] = []
        """The steps that triggered compilation."""
        self._graphs = _graphs_compiled()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, layers and gate run their compiled code."""
        with nullcontext() if self.gate is None else self.gate.running():
            try:
                for layer, call in self.calls.items():
                    layer._compiled_call_impl = call
                yield
            finally:
                for layer in self.calls:
                    layer._compiled_call_impl = None

    def note(self, step: int) -> None:
        """Remember a step that has just run if it compiled: at a first batch, or because shapes needed other code.

        The code serves all shapes, but depends on those it was compiled at (in how sums are split, for example).
        """
        before, self._graphs = self._graphs, _graphs_compiled()
        if self._graphs > before and step not in self.steps:
            self.steps.append(step)

    def repeated(self, steps: list[int]) -> None:
        """Remember the steps at whose batches the code was just compiled again."""
        self.steps, self._graphs = steps, _graphs_compiled()


def _graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
