"""From a query to results: checks, splitting, decoding. The dialects translate to and from it."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

from l0drop.app.serve.limits import Limits
from l0drop.app.serve.metrics import Metrics
from l0drop.app.serve.models import Models, Served, ServedSpeech, check_dial
from l0drop.app.serve.requests import Problem, refused
from l0drop.app.serve.scheduler import DecodedItem, Item, OutputBounds, Scheduler, expired
from l0drop.app.serve.shadow import CLIENT, SHADOW_PART, Shadow
from l0drop.app.serve.turns import Turns, in_one_step
from l0drop.data.audio import Audio, AudioError, read_in_steps
from l0drop.decoding.results import Explained, Result
from l0drop.decoding.sources import Source
from l0drop.decoding.speech import Transcript
from l0drop.decoding.splitting import Piece, Steps, check_room, encode_in_steps, join_results

log = logging.getLogger("l0drop.serve")

T = TypeVar("T")
Long = Literal["split", "cut"]

SMALL = 2_000
"""Tokens or characters that are read or written on the event loop, which takes a few milliseconds."""


class Held:
    """The bytes of bodies and recordings that requests in progress hold."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    def take(self, size: int) -> None:
        """Count so many bytes; a Problem if there are too many."""
        if self.bytes + size > self.most:
            headers = {"Retry-After": "5", "Connection": "close"}
            raise Problem(503, "too many large requests in progress; try again later", headers)
        self.bytes += size

    def give(self, size: int) -> None:
        self.bytes -= size


@dataclass(frozen=True)
class Query:
    """Texts for one model with one search.

    dial: `keep`, `max_memory`, `shift`, `dense`. languages: `source_lang` and `target_lang` of a multilingual model.
    long: what happens to a text that exceeds the model's positions. alone: each text, and each piece of a long text, is
    decoded in a batch of its own, so that its time is its own. deadline: on the monotonic clock; None for the seconds
    that the service allows, from now.
    """

    served: Served
    texts: Sequence[str]
    client: str
    generation: Mapping[str, Any] = field(default_factory=dict)
    dial: Mapping[str, Any] = field(default_factory=dict)
    languages: Mapping[str, str] = field(default_factory=dict)
    prefix: str | None = None
    long: Long = "split"
    alone: bool = False
    deadline: float | None = None


@dataclass(frozen=True)
class Answer:
    """The result of one text. pieces: how many parts it was split into.

    queue_seconds: of the part that waited longest. decode_seconds: the seconds of its batch; for a text of several
    parts those of the slowest batch, and with `alone` the sum over all parts.
    """

    result: Result
    pieces: int
    queue_seconds: float
    decode_seconds: float
    batch: int


@dataclass(frozen=True)
class AudioAnswer:
    """The transcript of one recording, and the recording. batch: recordings decoded together; 0 for silence."""

    transcript: Transcript
    clip: Audio
    queue_seconds: float
    decode_seconds: float
    batch: int


@dataclass(frozen=True)
class _Text:
    """A text in pieces that fit the model."""

    text: str
    pieces: Sequence[Piece]
    sources: Sequence[Source]


class Service:
    """Everything behind the dialects. It lives from `start` to `stop`, on one event loop."""

    def __init__(
        self,
        models: Models,
        limits: Limits,
        shadow: float = 0.0,
        reference: Served | None = None,
        log_texts: bool = False,
    ) -> None:
        self.models, self.limits, self.metrics, self.log_texts = models, limits, Metrics(), log_texts
        self.ready = False
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.held = Held(limits.held)
        self.scheduler = Scheduler(self.metrics, limits.queue)
        self.shadow = Shadow(self.generate, self.metrics, shadow, reference, max(1, limits.queue // SHADOW_PART))
        # each has a thread of its own, so that none holds up another
        self._tokenizing, self._listening = Turns("tokenizing"), Turns("reading-audio")
        self._detecting, self._converting = Turns("detecting"), Turns("converting")
        self._warming: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._warming = asyncio.create_task(self._warm_up(), name="warm-up")

    async def stop(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
        await self.shadow.stop()
        for turns in (self._tokenizing, self._listening, self._detecting, self._converting):
            turns.close()
        await self.scheduler.stop()

    async def _warm_up(self) -> None:
        """Decode once with every model. A model that cannot is a `failure`, which `on_failure` is told."""
        for served in self.models:
            try:
                await asyncio.to_thread(served.warm_up)
            except Exception as error:
                log.exception("%s: the model cannot decode", served.name)
                self.failure = error
                self.on_failure()
                return
        self.ready = True

    async def generate(self, query: Query) -> list[Answer]:
        """An answer per text, in order; the same as `TextModel.generate`, except that long texts are split."""
        deadline = self._deadline(query.deadline)
        self._check(query)
        settings, bounds, texts = await self._tokenize(query, deadline)
        live = query.client != CLIENT
        items = [
            Item(query.served, source, settings, query.client, deadline, None, query.alone, bounds, live)
            for text in texts
            for source in text.sources
            if not source.is_blank
        ]
        done = iter(await self.scheduler.decode(items) if items else ())
        answers = [
            _answer(text, [_BLANK if source.is_blank else next(done) for source in text.sources], query.alone)
            for text in texts
        ]
        if self.log_texts:
            for text, answer in zip(query.texts, answers, strict=True):
                log.info("%s: %r -> %r", query.served.name, text, answer.result.text)
        self.shadow.consider(query, answers)
        return answers

    async def explain(self, query: Query) -> tuple[Explained, DecodedItem]:
        """The output for one text with gates and attention; a long text is cut."""
        deadline = self._deadline(query.deadline)
        self._check(query)
        if (shortener := query.served.model.engine.shortener) is not None:
            raise Problem(
                400, f"model: an explanation shows gates, and the memory of {query.served.name} comes from {shortener}"
            )
        settings, bounds, texts = await self._tokenize(replace(query, long="cut"), deadline)
        (source,) = texts[0].sources
        if source.is_blank:
            raise Problem(400, "text: is blank, there is nothing to explain")
        given: dict[str, Any] = {**query.languages, **query.dial, **query.generation}
        run = partial(query.served.model.explain, query.texts[0], prefix=query.prefix, **given)
        item = Item(query.served, source, settings, query.client, deadline, run, bounds=bounds)
        (done,) = await self.scheduler.decode([item])
        return done.result, done

    async def transcribe(
        self,
        served: ServedSpeech,
        content: bytes,
        client: str,
        generation: Mapping[str, Any],
        dial: Mapping[str, Any],
        *,
        seed: int | None = None,
        alone: bool = False,
        deadline: float | None = None,
    ) -> AudioAnswer:
        """The transcript of a recording, the same as `SpeechModel.transcribe`.

        seed: of a sampled output, which is decoded in a batch of its own. alone, deadline: as in Query.
        """
        deadline = self._deadline(deadline)
        self._check_ready()
        self._check_search(generation, served.most_new_tokens - len(generation.get("prompt_ids", ())))
        check_dial(served, dial)
        try:
            settings = served.model.settings({**generation, **dial})
        except (TypeError, ValueError) as error:
            raise refused(error, served.model.name, served.name) from None
        try:
            hear = _heard(content, self.limits.audio_seconds)
            clip, is_silent = await self._read(self._listening, client, deadline, hear)
        except AudioError as error:
            raise refused(error) from None
        if seed is not None:
            settings["seed"], alone = seed, True
        if is_silent:
            return AudioAnswer(Transcript("", seconds=clip.seconds), clip, 0.0, 0.0, 0)
        most_new = int(settings.get("max_new_tokens") or served.most_new_tokens)
        bounds = OutputBounds(int(settings.get("num_beams") or 1), most=most_new)
        item = Item(served, clip, settings, client, deadline, alone=alone, bounds=bounds)
        done = await self._decode_clip(item)
        dense = {name: value for name, value in settings.items() if name not in dial} | {"dense": True}
        self.shadow.consider_recording(served, dial, done.result, partial(self._clip_again, item, dense))
        if self.log_texts:
            log.info("%s: %.1f s of audio -> %r", served.name, clip.seconds, done.result.text)
        return AudioAnswer(done.result, clip, done.queue_seconds, done.decode_seconds, done.batch)

    async def _decode_clip(self, item: Item) -> DecodedItem:
        """A decoded recording, which is held in memory until then."""
        size = item.source.samples.nbytes
        self.held.take(size)
        try:
            (done,) = await self.scheduler.decode([item])
        finally:
            self.held.give(size)
        return done

    async def _clip_again(self, item: Item, settings: Mapping[str, Any]) -> str:
        """The text of a recording with other settings, for the shadow mode."""
        again = replace(item, settings=settings, client=CLIENT, deadline=self._deadline(None), is_counted=False)
        return str((await self._decode_clip(again)).result.text)

    async def detect(self, work: Callable[[], T], client: str, deadline: float) -> T:
        """The result of a language detector, which may be slow."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._detecting.run(client, in_one_step(work))
        except TimeoutError:
            raise expired() from None

    async def in_turn(self, client: str, size: int | None, work: Callable[[], T]) -> T:
        """The result of reading a form or writing an answer. Large ones leave the event loop free.

        size: tokens or characters; None if they are not known to be few.
        """
        if size is not None and size <= SMALL:
            return work()
        return await self._converting.run(client, in_one_step(work))

    def _check_ready(self) -> None:
        if not self.ready:
            raise Problem(503, "the models are still being prepared", {"Retry-After": "2"})

    def _check(self, query: Query) -> None:
        """Raise a Problem for a query beyond the limits, or one that the model cannot follow."""
        self._check_ready()
        self.check_texts(query.texts, query.prefix)
        self._check_search(query.generation)
        check_dial(query.served, query.dial)
        self.scheduler.check_room(query.served, len(query.texts))

    def check_texts(self, texts: Sequence[str], prefix: str | None = None) -> None:
        """Raise a Problem for too many texts, or one that is too long together with the prefix."""
        limits = self.limits
        if len(texts) > limits.texts:
            raise Problem(413, f"at most {limits.texts} texts per request, got {len(texts)}")
        for index, text in enumerate(texts):
            length = len(prefix or "") + len(text)
            if length > limits.text:
                counted = " with its prefix" if prefix else ""
                raise Problem(
                    413, f"text {index + 1} has {length:,} characters{counted}; at most {limits.text:,} are accepted"
                )

    def _check_search(self, generation: Mapping[str, Any], positions: int | None = None) -> None:
        tokens = self.limits.new_tokens if positions is None else min(positions, self.limits.new_tokens)
        for name, most in (("num_beams", self.limits.beams), ("max_new_tokens", tokens), ("max_length", tokens)):
            if (generation.get(name) or 0) > most:
                raise Problem(400, f"{name}: at most {most}, got {generation[name]}")

    async def _tokenize(self, query: Query, deadline: float) -> tuple[dict[str, Any], OutputBounds, list[_Text]]:
        """All settings of the search, the bounds of its outputs, and the texts as sources."""
        try:
            return await self._read(self._tokenizing, query.client, deadline, self._tokenized(query))
        except (TypeError, ValueError) as error:
            raise refused(error, query.served.model.name, query.served.name) from None

    def _tokenized(self, query: Query) -> Steps[tuple[dict[str, Any], OutputBounds, list[_Text]]]:
        """`_tokenize` in steps of one text, or of one part that is tried."""
        model = query.served.model
        settings = model.settings(query.languages.get("target_lang"), query.generation)  # may wait for the tokenizer
        search = model.engine.search(**settings)
        bounds = OutputBounds(search.beams, search.min_length - search.given, search.max_length - search.given)
        yield
        encode = partial(self._sources, query)
        texts = []
        for text in query.texts:
            if query.long == "cut":
                pieces, sources = [(0, len(text))], encode([text])
                if sources[0].cut:
                    check_room(text, lambda part: not encode([part])[0].cut)
            else:
                pieces, sources = yield from encode_in_steps(text, encode)
            texts.append(_Text(text, pieces, [replace(source, dial=query.dial) for source in sources]))
            yield
        return settings, bounds, texts

    def _sources(self, query: Query, texts: Sequence[str]) -> list[Source]:
        return query.served.model.encode(
            texts, source_lang=query.languages.get("source_lang"), prefix=query.prefix, names=lambda index: "text"
        )

    def _deadline(self, deadline: float | None) -> float:
        return time.monotonic() + self.limits.seconds if deadline is None else deadline

    async def _read(self, turns: Turns, client: str, deadline: float, steps: Steps[T]) -> T:
        """Read an input off the event loop, until the deadline."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await turns.run(client, steps)
        except TimeoutError:
            self.metrics.expired.inc(client != CLIENT)
            raise expired() from None


def _heard(content: bytes, most_seconds: float) -> Steps[tuple[Audio, bool]]:
    """The recording, and whether it is silent, which takes a look at all samples."""
    clip = yield from read_in_steps(content, "file", most_seconds)
    return clip, clip.is_silent


_BLANK = DecodedItem(Result(""), 0.0, 0.0, 0)


def _answer(text: _Text, parts: Sequence[DecodedItem], alone: bool) -> Answer:
    seconds = [part.decode_seconds for part in parts]
    return Answer(
        result=join_results(text.text, text.pieces, [part.result for part in parts]),
        pieces=len(parts),
        queue_seconds=max(part.queue_seconds for part in parts),
        decode_seconds=sum(seconds) if alone else max(seconds),
        batch=max(part.batch for part in parts),
    )
