"""Shadow mode: a share of texts and recordings is decoded a second time, and the two outputs are compared.

The reference is the same model on its full gated memory with its own gates, or another served model, such as the
baseline without gates. The first shows the effect of clients' dials, and faults of short decoding, because a short
memory gives the same output. The second shows the quality that dropping costs on the texts of these days.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from l0drop.app.serve.metrics import Metrics
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.requests import Problem
from l0drop.data.metrics import chrf
from l0drop.decoding.speech import Transcript

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
Again = Callable[[], Awaitable[str]]
"""The output of a second decoding."""


class Shadow:
    """Decodes texts and recordings again in the background, after their answers were given.

    share: of texts and recordings. most: pieces of texts, and recordings, that are decoded again or wait for it;
    further ones are skipped.
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
        self._pieces = 0

    def consider(self, query: "Query", answers: "Sequence[Answer]") -> None:
        """Choose texts of an answered query."""
        if query.client == CLIENT or not self._differs(query.served, query.dial):
            return
        for text, answer in zip(query.texts, answers, strict=True):
            result = answer.result
            if result.source_tokens:
                again = partial(self._text_again, replace(query, texts=[text]))
                kept = len(result.kept) / result.source_tokens
                self._choose(query.served, again, result.text, kept, answer.pieces)

    def consider_recording(
        self, served: ServedSpeech, dial: Mapping[str, Any], transcript: Transcript, again: Again
    ) -> None:
        """Perhaps choose a recording. again: decodes it dense. Another reference is a text model."""
        if self.reference is None and self._differs(served, dial):
            self._choose(served, again, transcript.text, 1 - transcript.sparsity)

    def _differs(self, served: Served | ServedSpeech, dial: Mapping[str, Any]) -> bool:
        """Whether a second decoding is another one: without gates, and with `dense`, nothing was dropped."""
        return served.model.is_gated and not dial.get("dense") and served is not self.reference

    def _choose(self, served: Served | ServedSpeech, again: Again, text: str, kept: float, pieces: int = 1) -> None:
        """Decode a share of what is offered again, unless too much waits for it."""
        if not self.share or self._random.random() >= self.share:
            return
        if self._pieces + pieces > self.most:
            self.metrics.shadow_skipped.labels(*self._labels(served)).inc()
            return
        task = asyncio.create_task(self._compare(served, again, text, kept))
        self._tasks.add(task)
        self._pieces += pieces

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._pieces -= pieces

        task.add_done_callback(end)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _text_again(self, query: "Query") -> str:
        served = self.reference or query.served
        dial = {"dense": True} if self.reference is None else {}
        again = replace(query, served=served, dial=dial, client=CLIENT, alone=False, deadline=None)
        (answer,) = await self.generate(again)
        return answer.result.text

    async def _compare(self, served: Served | ServedSpeech, again: Again, text: str, kept: float) -> None:
        try:
            other = await again()
        except Problem:  # a full queue, or the deadline
            self.metrics.shadow_skipped.labels(*self._labels(served)).inc()
        except Exception:
            log.exception("%s: a second decoding failed", served.name)
        else:
            same = text == other
            self._report(served, same, 100.0 if same else await asyncio.to_thread(_chrf, text, other), kept)

    def _labels(self, served: Served | ServedSpeech) -> tuple[str, str]:
        return served.name, DENSE if self.reference is None else self.reference.name

    def _report(self, served: Served | ServedSpeech, same: bool, score: float, kept: float) -> None:
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
