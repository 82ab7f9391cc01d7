"""A compiler for tests: its code computes a little else by the shapes it was made at, as that of a GPU does."""

import functools
from typing import Any

import torch

made_at: list[list[int]] = []
"""The sizes of tensors at which something was compiled, in order."""


def _compiler(graph: Any, inputs: list[Any], **options: Any) -> Any:
    sizes = [int(size) for tensor in inputs if isinstance(tensor, torch.Tensor) for size in tensor.shape]
    made_at.append(sizes)

    def code(*arguments: Any) -> tuple[Any, ...]:
        scale = 1 + 1e-4 * (sum(sizes) % 97)
        found = graph(*arguments)
        return tuple(x * scale if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in found)

    return code


compile_by_shapes = functools.partial(torch.compile, backend=_compiler)
"""In place of `torch.compile`."""
