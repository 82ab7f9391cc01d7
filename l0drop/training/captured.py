"""Training steps as CUDA graphs: what the program launches one by one in a first step, the GPU repeats by itself.

A step of a small model is over a thousand kernels, and to launch one takes longer than to run it. Where batches have
few shapes (`TokenBatches` with `multiple`), forward and backward pass of each are captured when a shape is met for the
second time, and from then on replayed on other inputs. Everything that differs between steps is a tensor: the batch, λ,
totals. Dropout draws anew at every replay.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0drop.training.fast import Early, together

Forward = Callable[[dict[str, Tensor], Any], tuple[Tensor, dict[str, Tensor]]]
"""From a batch and a variant to the loss and to numbers of interest."""
Backward = Callable[[Tensor], None]


@dataclass(frozen=True, eq=False)
class _Graphs:
    inputs: dict[str, Tensor]
    forward: Any
    backward: Any
    loss: Tensor
    names: list[str]
    numbers: Tensor


class Captured:
    """A forward and a backward pass, captured by shape.

    `forward` must not look at values of tensors, and `backward` must add to gradients that are there already and stay
    there (`StaticGradients`). Forward and backward are two graphs, so that the numbers of the one arrive while the
    other is running. All graphs share their memory: they run one after the other.
    """

    def __init__(self, forward: Forward, backward: Backward) -> None:
        self.forward, self.backward = forward, backward
        self.graphs: dict[Hashable, _Graphs] = {}
        self.met: set[Hashable] = set()
        self.stream: Any = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def step(self, inputs: dict[str, Tensor], variant: Hashable = None) -> tuple[Tensor, Early]:
        """The loss, and numbers on their way; `variant` tells apart what is done with inputs of the same shapes."""
        key = (variant, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        if key not in self.met:
            self.met.add(key)
            return self._plainly(inputs, variant)
        if key not in self.graphs:
            self.graphs[key] = self._capture(inputs, variant)
        graphs = self.graphs[key]
        for name, tensor in inputs.items():
            graphs.inputs[name].copy_(tensor)
        graphs.forward.replay()
        early = Early(graphs.names, graphs.numbers)
        graphs.backward.replay()
        return graphs.loss, early

    def _plainly(self, inputs: dict[str, Tensor], variant: Hashable) -> tuple[Tensor, Early]:
        """Once for every shape; on the stream that is captured later, as libraries set up their memory by stream."""
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            loss, numbers = self.forward(inputs, variant)
            early = Early(*together(numbers))
            self.backward(loss)
        main.wait_stream(self.stream)
        return loss.detach(), early

    def _capture(self, inputs: dict[str, Tensor], variant: Hashable) -> _Graphs:
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        # thread_local: the thread that pins batches goes on meanwhile
        settings: dict[str, Any] = {
            "pool": self.pool,
            "stream": self.stream,
            "capture_error_mode": "thread_local",
        }
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(forward, **settings):
                loss, numbers = self.forward(static, variant)
                names, stacked = together(numbers)
            with torch.cuda.graph(backward, **settings):
                self.backward(loss)
        except RuntimeError as error:
            fault = str(error).partition("\n")[0]
            raise ValueError(f"train.capture: the step could not be captured ({fault}); set it to false") from error
        return _Graphs(static, forward, backward, loss.detach(), names, stacked)
