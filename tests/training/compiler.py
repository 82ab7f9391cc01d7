"""A compiler for tests, whose results depend slightly on the shapes at compilation, as on a GPU."""

import functools
from typing import Any

import torch

made_at: list[list[int]] = []
"""The tensor sizes of all compilations, in order."""


def _compiler(graph: Any, inputs: list[Any], **options: Any) -> Any:
    sizes = [int(size) for tensor in inputs if isinstance(tensor, torch.Tensor) for size in tensor.shape]
    made_at.append(sizes)

    def code(*arguments: Any) -> tuple[Any, ...]:
        scale = 1 + 1e-4 * (sum(sizes) % 97)
        found = graph(*arguments)
        return tuple(x * scale if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in found)

    return code


compile_by_shapes = functools.partial(torch.compile, backend=_compiler)
"""A replacement for `torch.compile`."""
