"""Shadow mode: a share of the texts is decoded a second time, and the two outputs are compared.

The reference is the same model on its full gated memory with its own gates, or another served model, such as the
baseline without gates. The first shows the effect of clients' dials, and faults of short decoding, because a short
memory gives the same output. The second shows the quality that dropping costs on the texts of these days.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from l0drop.app.serve.metrics import Metrics
from l0drop.app.serve.models import Served
from l0drop.app.serve.requests import Problem
from l0drop.data.metrics import chrf
from l0drop.decoding.results import Result

if TYPE_CHECKING:
    from l0drop.app.serve.service import Answer, Query

log = logging.getLogger("l0drop.serve")

SHADOW_PART = 16
"""Second decodings wait in at most this part of the queue, so that they do not take the room of live traffic."""
RECENT = 500
"""Texts that the gauges in /metrics cover."""
CLIENT = "shadow"
"""Shadow texts wait in the queue like those of one more client."""
DENSE = "dense"
"""The reference's name in /metrics if it is the same model."""


class Shadow:
    """Decodes texts again in the background, after their answers were given.

    most: texts that are decoded again or wait for it; further ones are skipped.
    """

    def __init__(
        self,
        generate: "Callable[[Query], Awaitable[list[Answer]]]",
        metrics: Metrics,
        share: float,
        reference: Served | None = None,
        most: int = RECENT,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"--shadow: expected a share between 0 and 1, got {share:g}")
        self.generate, self.metrics, self.share, self.reference = generate, metrics, share, reference
        self.most = most
        self._random = random.Random(0)
        self._recent: dict[tuple[str, str], deque[tuple[bool, float, float]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def consider(self, query: "Query", answers: "Sequence[Answer]") -> None:
        """Choose texts of an answered query."""
        if not self.share or query.client == CLIENT or not self._differs(query):
            return
        for text, answer in zip(query.texts, answers, strict=True):
            if answer.result.source_tokens and self._random.random() < self.share:
                if len(self._tasks) >= self.most:
                    self.metrics.shadow_skipped.labels(*self._labels(query.served)).inc()
                    continue
                task = asyncio.create_task(self._compare(replace(query, texts=[text]), answer.result))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _differs(self, query: "Query") -> bool:
        """Whether a second decoding is another one: without gates, and with `dense`, nothing was dropped."""
        is_short = query.served.model.is_gated and not query.dial.get("dense")
        return is_short and query.served is not self.reference

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, query: "Query", result: Result) -> None:
        served = self.reference or query.served
        dial = {"dense": True} if self.reference is None else {}
        again = replace(query, served=served, dial=dial, client=CLIENT, alone=False, deadline=None)
        try:
            (answer,) = await self.generate(again)
        except Problem:  # a full queue, or the deadline
            self.metrics.shadow_skipped.labels(*self._labels(query.served)).inc()
        except Exception:
            log.exception("%s: a second decoding failed", served.name)
        else:
            same = result.text == answer.result.text
            score = 100.0 if same else await asyncio.to_thread(_chrf, result.text, answer.result.text)
            self._report(query.served, same, score, len(result.kept) / result.source_tokens)

    def _labels(self, served: Served) -> tuple[str, str]:
        return served.name, DENSE if self.reference is None else self.reference.name

    def _report(self, served: Served, same: bool, score: float, kept: float) -> None:
        labels = self._labels(served)
        recent = self._recent.setdefault(labels, deque(maxlen=RECENT))
        recent.append((same, score, kept))
        metrics = self.metrics
        metrics.shadow_texts.labels(*labels).inc()
        metrics.shadow_same.labels(*labels).inc(same)
        gauges = (metrics.shadow_agreement, metrics.shadow_chrf, metrics.shadow_kept)
        for gauge, values in zip(gauges, zip(*recent, strict=True), strict=True):
            gauge.labels(*labels).set(sum(values) / len(values))


def _chrf(text: str, other: str) -> float:
    return chrf([text], [other]).value
