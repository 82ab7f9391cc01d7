"""CUDA graphs: a computation is captured once, and replayed without launching its kernels one by one."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from l0drop.models.attention_kernels import without_cudnn_attention

_CAPTURING = threading.Lock()
"""Held while a computation is captured: one at a time in this process."""


class Graphs:
    """Captures the computations of one owner. Their graphs share memory, so the owner runs one at a time.

    A graph does not own what it reads: the owner keeps it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        self._pool: Any = None

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run twice, then capture; returns the replay. `run` must not read values, and must not depend on its count."""
        with _CAPTURING, without_cudnn_attention(), torch.cuda.device(self.device):
            self._stream = self._stream or torch.cuda.Stream(self.device)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            main = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(main)
            try:
                with torch.cuda.stream(self._stream):  # compiles kernels, and libraries allocate what a stream needs
                    run()
                    run()
            finally:  # also if it fails: the caller then frees buffers that the stream may still write to
                main.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # thread_local, because other threads go on using the GPU
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
        return graph.replay

    def forget(self) -> None:
        """Use new memory from now on, so that the memory of the graphs is freed when the last of them is."""
        self._pool = None

    def wait(self) -> None:
        """Wait until the GPU is idle: after an error, work on buffers that others may get next may still be queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def free_bytes(device: torch.device) -> int:
    """The memory of a GPU that new tensors can have: what is free, and what torch holds without using it."""
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats_as_nested_dict(device)  # several times faster than one number at a time
    reserved, allocated = (stats[name]["all"]["current"] for name in ("reserved_bytes", "allocated_bytes"))
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved
    return int(max(0, min(free, allowed)) + reserved - allocated)


def on_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of these numbers. The program does not wait until it is copied to a GPU."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
