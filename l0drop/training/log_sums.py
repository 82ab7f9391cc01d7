"""The numbers of a log entry: means over all steps since the last one, over all processes."""

import time
from typing import Any

from accelerate.utils import gather_object


class LogSums:
    """Sums over micro-batches of this process since the last log entry."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._since = time.perf_counter()

    def add(self, numbers: dict[str, float], batch: dict[str, Any]) -> None:
        """Add the numbers of a micro-batch, as `Objective` names them."""
        tokens, sentences = batch["source_tokens"], len(batch["labels"])
        self._add(cross_entropy=numbers["cross_entropy"], target_tokens=batch["target_tokens"], source_tokens=tokens)
        if "divergence" in numbers:
            self._add(divergence=numbers["divergence"])
        if "penalty" in numbers:
            self._add(penalty=numbers["penalty"] * sentences, sentences=sentences)
            self._add(dropped=numbers["sparsity"] * tokens)
        if "open" in numbers:
            self._add(open=numbers["open"])

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def entry(self) -> dict[str, float]:
        """The means of all processes, which all must ask for them; the sums start anew."""
        sums, self._sums = self._sums, {}
        if not sums:
            return {}
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        parts = gather_object([sums])
        total = {name: sum(part.get(name, 0.0) for part in parts) for name in sums}
        found = {
            "cross_entropy": total["cross_entropy"] / total["target_tokens"],
            "tokens_per_second": (total["source_tokens"] + total["target_tokens"]) / seconds,
        }
        if "divergence" in total:
            found["divergence"] = total["divergence"] / total["target_tokens"]
        if "penalty" in total:
            found["penalty"] = total["penalty"] / total["sentences"]
            found["sparsity"] = total["dropped"] / total["source_tokens"]
        if "open" in total:
            found["expected_open_rate"] = total["open"] / total["source_tokens"]
        return found
