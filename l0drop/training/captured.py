"""Training steps as CUDA graphs: kernels are launched one by one in a first step, then replayed by the GPU.

A step of a small model has over a thousand kernels, and launching one takes longer than running it. If batches have few
shapes (`TokenBatches` with `multiple`), the forward and backward passes of a shape are captured when it occurs for the
second time, and replayed on other inputs from then on. Every value that differs between steps is a tensor: the batch,
λ, totals, the scale of the gates' noise. Dropout draws a new mask at every replay.
"""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from l0drop.training.low_precision import LowPrecision
from l0drop.training.objective import Objective
from l0drop.training.transfers import Early, together

Forward = Callable[[dict[str, Tensor], Any], tuple[Tensor, dict[str, Tensor]]]
"""Maps a batch and a variant to the loss and to numbers for the log."""
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
    """A forward and a backward pass, captured per shape.

    `forward` must not read values of tensors, and `backward` must add to existing gradients at fixed addresses
    (`StaticGradients`). They are two graphs, so that the numbers of the forward pass arrive during the backward pass.
    All graphs share their memory, because they never run at the same time.
    """

    def __init__(self, forward: Forward, backward: Backward) -> None:
        self.forward, self.backward = forward, backward
        self.graphs: dict[Hashable, _Graphs] = {}
        self.seen: set[Hashable] = set()
        self.stream: Any = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def step(self, inputs: dict[str, Tensor], variant: Hashable = None) -> tuple[Tensor, Early]:
        """The loss, and the numbers; `variant` distinguishes computations on inputs of the same shapes."""
        key = (variant, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        if key not in self.seen:
            self.seen.add(key)
            return self._uncaptured(inputs, variant)
        if key not in self.graphs:
            self.graphs[key] = self._capture(inputs, variant)
        graphs = self.graphs[key]
        for name, tensor in inputs.items():
            graphs.inputs[name].copy_(tensor)
        graphs.forward.replay()
        early = Early(graphs.names, graphs.numbers)
        graphs.backward.replay()
        return graphs.loss, early

    def _uncaptured(self, inputs: dict[str, Tensor], variant: Hashable) -> tuple[Tensor, Early]:
        """Run the first step of a shape on the stream that is captured later, because libraries allocate per stream."""
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
        # thread_local, because the thread that pins batches keeps running
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


class CapturedSteps:
    """The training steps of an objective, captured per shape.

    low_precision: the copies whose gradients a backward pass collects.
    precision: a context for the forward pass, such as autocast.
    model: called for the model, because the Trainer wraps it when training starts.
    """

    def __init__(
        self,
        objective: Objective,
        low_precision: LowPrecision | None,
        precision: Callable[[], AbstractContextManager[Any]],
        model: Callable[[], Any],
    ) -> None:
        self.objective, self.low_precision, self.precision, self.model = objective, low_precision, precision, model
        self.captured = Captured(self._forward, self._backward)

    def step(self, batch: dict[str, Any], device: torch.device) -> tuple[Tensor, Early]:
        """The loss, and the numbers."""
        batch, totals = self.objective.complete(batch), batch["totals"]
        tensors = {name: batch[name] for name in ("input_ids", "attention_mask", "labels", "real")}
        tensors |= {f"hints.{name}": hint for name, hint in batch["hints"].items()}
        moving = [float(totals.target_tokens), float(totals.sentences), float(batch.get("lambda", 0.0))]
        scale = batch.get("noise_scale")
        moving.append(1.0 if scale is None else scale)
        on_gpu = device.type == "cuda"
        tensors["moving"] = torch.tensor(moving, pin_memory=on_gpu).to(device, non_blocking=True)
        if "noise_key" in batch:
            tensors["noise_key"] = batch["noise_key"]
        return self.captured.step(tensors, (batch["elastic"], batch["settled"], batch["fixed"], scale is not None))

    def _forward(self, tensors: dict[str, Tensor], variant: tuple[bool, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """The captured part of a forward pass: every value that differs between steps is a tensor."""
        tokens, sentences, lambda_, scale = tensors["moving"].unbind()
        elastic, settled, fixed, shrinking = variant
        hints = {name.removeprefix("hints."): t for name, t in tensors.items() if name.startswith("hints.")}
        totals: Any = SimpleNamespace(target_tokens=tokens, sentences=sentences)
        batch = {
            **tensors,
            "hints": hints,
            "totals": totals,
            "lambda": lambda_,
            "elastic": elastic,
            "settled": settled,
            "fixed": fixed,
            "noise_scale": scale if shrinking else None,
        }
        with self.precision():
            loss, numbers, _ = self.objective(self.model(), batch)
        return loss, {"loss": loss, **numbers}

    def _backward(self, loss: Tensor) -> None:
        loss.backward()
        if self.low_precision is not None:
            self.low_precision.collect()
