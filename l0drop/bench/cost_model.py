"""The time of encoding and decoding a batch of any shape, as a sum of costs that are fitted to a few measured times.

Shapes: B sentences, N source tokens, K memory rows, T tokens to produce, D model width.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from l0drop.runs.benchmark import Shape
from l0drop.runs.prediction import ModelSizes

PAYS = 1.05
"""The smallest speed-up that counts as a gain."""

LARGE = 32 << 20
"""Bytes from which Linux gives a tensor fresh pages at every allocation, which takes time to clear them."""

DECODE = {
    "start": "per batch: setting up caches and search",
    "step": "per token, independent of the batch: reading the weights, launching the operations",
    "row": "per token of a beam: linear layers, output layer, search",
    "prefix": "per pair of a beam's token and an earlier one: self-attention",
    "memory_row": "per memory row: its keys and values",
    "attended": "per memory row and token: cross-attention of all beams of its sentence",
    "large": f"extra, per memory row, if the keys of a layer take {LARGE >> 20} MiB or more: fresh pages",
}
ENCODE = {
    "start": "per batch",
    "token": "per source token: linear layers",
    "attended": "per pair of source tokens: self-attention",
    "large": f"extra, per source token, if the widest activations take {LARGE >> 20} MiB or more: fresh pages",
}

ByName = Mapping[str, float]
"""Seconds or counts, by the names of costs."""


class Sizes(ModelSizes):
    """Counts the costs of a batch."""

    def decode(self, batch: int, rows: int, target: int) -> dict[str, float]:
        """Counts of the costs in `DECODE`. At the first token all beams are one."""
        memory = batch * rows
        return {
            "start": 1,
            "step": target,
            "row": batch + batch * self.beams * (target - 1),
            "prefix": batch * self.beams * target * (target - 1) / 2,
            "memory_row": memory,
            "attended": memory * target,
            "large": memory if self.pages and 4 * memory * self.memory >= LARGE else 0,
        }

    def encode(self, batch: int, source: int) -> dict[str, float]:
        """Counts of the costs in `ENCODE`."""
        tokens = batch * source
        return {
            "start": 1,
            "token": tokens,
            "attended": tokens * source,
            "large": tokens if self.pages and 4 * tokens * self.activations >= LARGE else 0,
        }

    def kept(self, source: int, dropped: float) -> int:
        """Rows of the short memory of a sentence."""
        return max(1, round((1 - dropped) * source)) + self.zero_row


def fit(counts: Sequence[ByName], seconds: Sequence[float]) -> dict[str, float]:
    """Non-negative costs with the least sum of squared relative errors.

    At the optimum, the positive costs are a plain least-squares solution without the others, so all subsets are tried.
    A cost that occurs at no point is 0.
    """
    names = [name for name in counts[0] if any(count[name] for count in counts)]
    times = torch.tensor(seconds, dtype=torch.float64)
    occurs = torch.tensor([[count[name] for name in names] for count in counts], dtype=torch.float64)
    relative = occurs / times[:, None]
    scale = relative.amax(0)
    best, least = torch.zeros(len(names), dtype=torch.float64), float("inf")
    for size in range(1, len(names) + 1):
        for chosen in map(list, itertools.combinations(range(len(names)), size)):
            part = relative[:, chosen] / scale[chosen]
            solution = torch.linalg.lstsq(part, torch.ones(len(times), 1, dtype=torch.float64)).solution[:, 0]
            error = float((part @ solution - 1).square().sum())
            if bool((solution >= 0).all()) and error < least:
                least = error
                best = torch.zeros(len(names), dtype=torch.float64)
                best[chosen] = solution / scale[chosen]
    return {**dict.fromkeys(counts[0], 0.0), **dict(zip(names, best.tolist(), strict=True))}


def total(costs: ByName, counts: ByName) -> float:
    """Total seconds for these counts."""
    return sum(costs[name] * count for name, count in counts.items())


@dataclass(frozen=True)
class Prediction:
    """Fitted costs, and predictions for any shape."""

    sizes: Sizes
    decode: ByName
    encode: ByName

    def seconds(self, shape: Shape) -> dict[str, float]:
        """Seconds for a batch of this shape: encoding, and decoding on the dense and on the short memory."""
        short = self.sizes.kept(shape.source, shape.dropped)
        return {
            "encode": total(self.encode, self.sizes.encode(shape.batch, shape.source)),
            "dense": total(self.decode, self.sizes.decode(shape.batch, shape.source, shape.target)),
            "short": total(self.decode, self.sizes.decode(shape.batch, short, shape.target)),
        }

    def speed_up(self, shape: Shape) -> dict[str, float]:
        """Speed-up of the short memory over the dense one: in decoding, and in encoding and decoding together."""
        seconds = self.seconds(shape)
        encode, dense, short = seconds["encode"], seconds["dense"], seconds["short"]
        return {"decode": dense / short, "both": (encode + dense) / (encode + short)}

    def pays_from(self, batch: int, target: int, dropped: float, longest: int) -> dict[str, int | None]:
        """The shortest source from which every length up to `longest` has a speed-up of at least `PAYS`.

        None if `longest` has less: encoding grows with the square of the length, so the speed-up of both phases
        together may fall again.
        """
        found: dict[str, int | None] = {"decode": None, "both": None}
        for phase in found:
            for source in range(longest, 0, -1):
                if self.speed_up(Shape(batch, source, target, dropped))[phase] < PAYS:
                    break
                found[phase] = source
        return found
