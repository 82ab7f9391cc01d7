"""Transfers between the program and a GPU that neither waits for: numbers of a step, tensors of a batch."""

import torch
from torch import Tensor


def together(numbers: dict[str, Tensor]) -> tuple[list[str], Tensor]:
    """The names, and the numbers as one tensor with the dtype of the first."""
    first = next(iter(numbers.values()))
    # counts of tokens are exact in float32 below 2^24
    return list(numbers), torch.stack([number.detach().to(first.dtype) for number in numbers.values()])


class Early:
    """Numbers copied from the GPU as soon as they are computed, while the program launches more work."""

    def __init__(self, names: list[str], numbers: Tensor) -> None:
        self._names = names
        self._arrived = torch.cuda.Event() if numbers.is_cuda else None
        self._here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self._here.copy_(numbers, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> dict[str, float]:
        """Wait for the numbers and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return dict(zip(self._names, self._here.tolist(), strict=True))


class Packed:
    """The tensors of a batch as one tensor, for the transfer from a worker process to the GPU.

    Receiving, pinning and sending a tensor has a cost that does not depend on its size. All are int64.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.numbers = torch.cat([tensor.flatten() for tensor in tensors.values()])

    def pin_memory(self) -> "Packed":
        """Called by the DataLoader in its own thread, so that the GPU can fetch the numbers directly."""
        self.numbers = self.numbers.pin_memory()
        return self

    def unpacked(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on a device, without waiting for the transfer."""
        parts = self.numbers.to(device, non_blocking=True).split([shape.numel() for shape in self.shapes.values()])
        # copies, because compiled code needs inputs aligned to 16 bytes
        return {name: part.view(shape).clone() for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
