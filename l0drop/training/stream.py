"""The stream of micro-batches for training steps, made in this process or in workers."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from l0drop.data.batches import Step, TokenBatches
from l0drop.data.clip_batches import ClipBatches, ClipStep
from l0drop.training.examples import RunCorpus, collated
from l0drop.training.objective import Totals
from l0drop.training.transfers import Packed


class StepStream(IterableDataset):
    """The micro-batches of this process, starting at the trainer's current step.

    `real`, the indices of real target tokens in a flattened batch, and the numbers of tokens are computed here, because
    reading them from the GPU would mean waiting for it. If batches have few shapes, indices of padding extend `real` to
    few lengths.
    """

    def __init__(
        self, batches: TokenBatches | ClipBatches, corpus: RunCorpus, pad_id: int, current_step: Callable[[], int]
    ) -> None:
        self.batches, self.corpus, self.pad_id, self.current_step = batches, corpus, pad_id, current_step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.every(1, 0)

    def every(self, turns: int, turn: int) -> Iterator[dict[str, Any]]:
        """Every `turns`-th micro-batch, starting with number `turn`."""
        start, numbers = self.current_step(), itertools.count()
        steps: Iterator[Step | ClipStep] = self.batches.steps_from(start)
        for step, content in enumerate(steps, start):
            for indices in content.mine:
                if next(numbers) % turns != turn:
                    continue
                batch = collated(self.corpus, indices, self.pad_id, content.length, packed=True)
                is_real = (batch["labels"] != -100).flatten()
                real = is_real.nonzero().flatten()
                known: dict[str, Any] = {"target_tokens": len(real)}
                if "source_tokens" not in batch:
                    known["source_tokens"] = int(batch["attention_mask"].sum())
                known["real"] = real if content.length is None else extended(real, is_real)
                totals = Totals(content.target_tokens, content.sentences)
                yield {**batch, **known, "step": step, "totals": totals}


def extended(real_R: Tensor, is_real_X: Tensor) -> Tensor:
    """The indices of real tokens, extended by one index of padding to a multiple of an eighth of the batch."""
    eighth = -(-len(is_real_X) // 8)
    missing = min(len(is_real_X), -(-len(real_R) // eighth) * eighth) - len(real_R)
    return torch.cat([real_R, is_real_X.int().argmin().expand(missing)])


class PackedStream(IterableDataset):
    """The same batches with their tensors packed into one, for worker processes that take turns."""

    def __init__(self, stream: StepStream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[tuple[Packed, dict[str, Any]]]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for batch in self.stream.every(turns, turn):
            tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
            hints = {f"hints.{name}": tensor for name, tensor in batch["hints"].items()}
            yield Packed({**tensors, **hints}), {n: v for n, v in batch.items() if n not in tensors and n != "hints"}


def unpacked(batch: tuple[Packed, dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """A batch of `PackedStream` in the form of `StepStream`, on a device."""
    tensors = batch[0].unpacked(device)
    hints = {name.removeprefix("hints."): tensors.pop(name) for name in list(tensors) if name.startswith("hints.")}
    return {**tensors, **batch[1], "hints": hints}
