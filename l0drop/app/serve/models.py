"""The models that are served: names, languages, tasks, and what their dial can do."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from l0drop.app.serve.requests import Problem, refused
from l0drop.core.dial import Dial
from l0drop.core.memory import has_shared_row
from l0drop.data.audio import RATE, Audio
from l0drop.decoding.languages import is_multilingual, language_ids
from l0drop.decoding.results import Result
from l0drop.decoding.sources import MIN_CPU_TOKENS, Source
from l0drop.decoding.speech import BATCH_CLIPS, SpeechModel
from l0drop.decoding.text import TextModel

TextTask = Literal["translation", "summarization"]
DIAL = ("keep", "max_memory", "shift")
PROMPT_TOKENS = 4
"""A Whisper's output begins with at most so many: start, language, task, no timestamps."""
PROBE = "1 2 3"
"""A text that every tokenizer reads."""
Check = Callable[..., None]
_SAMPLING = threading.Lock()
"""Held while the process's random numbers belong to one sampled output."""


@dataclass(eq=False)
class Served:
    """A model under the name that clients use.

    pair: source and target language of a model with one pair; None if unknown or multilingual.
    """

    name: str
    model: TextModel
    task: TextTask = "translation"
    pair: tuple[str, str] | None = None
    dials: frozenset[str] = frozenset()
    """The settings of the dial that its gate supports; `dense` always works."""
    beams: int = field(default=1, init=False)
    """Hypotheses of the model's own search."""
    _kept: float = field(default=1.0, init=False)  # a running mean of the kept share at the model's own setting

    def __post_init__(self) -> None:
        unknown = [code for code in self.pair or () if self.codes and code not in self.codes]
        if unknown:
            raise ValueError(
                f"`languages`: {unknown[0]!r} is not a language of {self.name}; it has {len(self.codes)}, such as "
                f"{', '.join(self.codes[:6])}"
            )

    @property
    def codes(self) -> list[str]:
        """The languages of a multilingual model, as its tokenizer names them."""
        tokenizer = self.model.tokenizers.source
        if not is_multilingual(tokenizer):
            return []
        names = getattr(tokenizer, "lang_code_to_id", None)
        return sorted(names) if names else sorted(tokenizer.convert_ids_to_tokens(sorted(language_ids(tokenizer))))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The language pairs that it is known to translate."""
        if self.pair is not None:
            return [self.pair]
        return [(source, target) for source in self.codes for target in self.codes if source != target]

    def translates(self, source: str, target: str) -> bool:
        if self.task != "translation":
            return False
        return self.pair == (source, target) or {source, target} <= set(self.codes)

    def languages(self, source: str, target: str) -> dict[str, str]:
        """The arguments of `TextModel.generate` for a pair: only multilingual models have any."""
        return {"source_lang": source, "target_lang": target} if self.codes else {}

    def warm_up(self) -> None:
        """Decode once, and find the settings of the dial that the gate supports."""
        source, target = self.pair or (self.codes[:1] * 2 or ("", ""))
        settings: dict[str, Any] = {"max_new_tokens": 2, **self.languages(source, target)}
        self.beams = self.model.engine.search(**self.model.settings(settings.get("target_lang"), {})).beams
        self.dials = dials_of(self.model.is_gated, partial(self.model.generate, [PROBE], **settings))

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens of a batch."""
        return self.model.batch_tokens

    @property
    def least_tokens(self) -> int:
        """The budget counts at least so many tokens per text."""
        return MIN_CPU_TOKENS if self.model.model.device.type == "cpu" else 1

    def kind(self, source: Source) -> None:
        """Any two texts can be decoded together."""

    def length(self, source: Source) -> int:
        return len(source.ids)

    def expected_rows(self, source: Source) -> int:
        """The expected length of its memory."""
        length, dial = len(source.ids), source.dial
        if not self.model.is_gated or dial.get("dense"):
            return length
        share = dial.get("keep", self._kept)
        return min(round(share * length), dial.get("max_memory", length))

    def observe(self, source: Source, result: Result) -> None:
        """Learn the kept share of the model's own setting."""
        if not source.dial and result.source_tokens:
            self._kept = 0.95 * self._kept + 0.05 * len(result.kept) / result.source_tokens

    def decode(self, sources: Sequence[Source], settings: Mapping[str, Any], check: Check) -> list[Any]:
        """Results of one batch. check: as for audio; a batch of texts is short enough without it."""
        return self.model.decode(sources, settings)

    def facts(self) -> dict[str, Any]:
        """For clients that choose a model."""
        config = self.model.model.config
        l0drop = getattr(config, "l0drop", None)
        has_gates = self.model.is_gated and self.model.engine.shortener is None
        return {
            "task": self.task,
            "model_type": config.model_type,
            "gated": self.model.is_gated,
            "gating": l0drop.gating if has_gates and l0drop is not None else None,
            "shortener": self.model.engine.shortener,
            "dial": [*sorted(self.dials), "dense"] if has_gates else [],
            "pair": list(self.pair) if self.pair else None,
            "languages": self.codes,
            "max_source_tokens": self.model.max_source,
            "dtype": self.model.dtype,
        }


@dataclass(eq=False)
class ServedSpeech:
    """A Whisper under the name that clients use."""

    name: str
    model: SpeechModel
    dials: frozenset[str] = frozenset()
    task: ClassVar[str] = "automatic-speech-recognition"
    least_tokens: ClassVar[int] = 1
    pairs: ClassVar[tuple[tuple[str, str], ...]] = ()

    @property
    def batch_tokens(self) -> int:
        """Encoder rows of a batch: as many windows as `SpeechModel.transcribe` decodes together."""
        return BATCH_CLIPS * int(self.model.model.config.max_source_positions)

    @property
    def is_multilingual(self) -> bool:
        return bool(getattr(self.model.model.generation_config, "is_multilingual", False))

    @property
    def most_new_tokens(self) -> int:
        """The decoder's positions behind the prompt."""
        return int(self.model.model.config.max_target_positions) - PROMPT_TOKENS

    def warm_up(self) -> None:
        """Decode once, and find the settings of the dial that the gate supports."""
        noise = np.random.default_rng(0).normal(0, 0.01, RATE // 10).astype(np.float32)
        self.dials = dials_of(self.model.is_gated, partial(self.model.transcribe, [noise], max_new_tokens=2))

    def language(self, language: str | None) -> dict[str, str]:
        """The setting for a language; only multilingual models have one."""
        if not language:
            return {}
        code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
        if self.is_multilingual:
            known: Any = self.model.model.generation_config
            if f"<|{code}|>" not in known.lang_to_id:
                raise Problem(400, f"language: {self.name} does not know {language!r}")
            return {"language": code}
        if code != "en":
            raise Problem(400, f"language: {self.name} transcribes English only")
        return {}

    def language_name(self, language: str | None) -> str:
        """The English name of a client's language; empty if it was detected."""
        if not self.is_multilingual:
            return "english"
        return LANGUAGES.get((language or "").lower(), (language or "").lower())

    def prompt(self, text: str | None) -> dict[str, Any]:
        """The setting for the words before the audio."""
        return {"prompt_ids": self.model.prompt_ids(text)} if text and text.strip() else {}

    def kind(self, clip: Audio) -> bool:
        """Clips of one window are decoded together, and so are longer recordings."""
        return self.model.is_long(clip)

    def length(self, clip: Audio) -> int:
        """Encoder rows: short clips are padded to a window."""
        rows = self.model.model.config.max_source_positions
        return rows * max(1, math.ceil(clip.seconds * RATE / self.model.extractor.n_samples))

    def expected_rows(self, clip: Audio) -> int:
        return self.length(clip)

    def decode(self, clips: Sequence[Audio], settings: Mapping[str, Any], check: Check) -> list[Any]:
        """Transcripts of one batch. check: called before every window; what it raises ends the decoding.

        The setting `seed` begins the random numbers of a sampled output.
        """
        plain = {name: value for name, value in settings.items() if name != "seed"}
        if "seed" not in settings:
            return self.model.decode(clips, {**plain, "monitor_progress": check})
        device = self.model.model.device
        with _SAMPLING, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(settings["seed"])
            return self.model.decode(clips, {**plain, "monitor_progress": check})

    def facts(self) -> dict[str, Any]:
        """For clients that choose a model."""
        return {
            "task": self.task,
            "model_type": self.model.model.config.model_type,
            "gated": self.model.is_gated,
            "gating": self.model.model.config.l0drop.gating if self.model.is_gated else None,
            "shortener": None,
            "dial": [*sorted(self.dials), "dense"] if self.model.is_gated else [],
            "multilingual": self.is_multilingual,
            "dtype": self.model.dtype,
        }


def dials_of(gated: bool, decode: Callable[..., Any]) -> frozenset[str]:
    """The settings of the dial that a model's gate supports, tried out; a model without gates decodes once."""
    decode()
    found = set()
    for name, value in {"keep": 0.5, "max_memory": 8, "shift": 0.5}.items() if gated else ():
        with suppress(ValueError):  # the gate is a rule
            decode(**{name: value})
            found.add(name)
    return frozenset(found)


def check_dial(served: Served | ServedSpeech, dial: Mapping[str, Any]) -> None:
    """Raise a Problem for a setting of the dial that this model cannot follow."""
    try:
        Dial(**dial)
    except (TypeError, ValueError) as error:
        raise refused(error) from None
    shortener = served.model.engine.shortener
    for name in dial:
        if shortener is not None:
            raise Problem(400, f"{name}: acts on gates, and the memory of {served.name} comes from {shortener} instead")
        if name in DIAL and not served.model.is_gated:
            raise Problem(400, f"{name}: {served.name} has no gates, so nothing can be dropped")
        if name in DIAL and name not in served.dials:
            raise Problem(400, f"{name}: the gate of {served.name} is a rule, which this setting cannot change")
    if dial.get("max_memory") == 1 and has_shared_row(served.model.model.config.l0drop.gating):
        raise Problem(400, "max_memory: expected at least 2 rows, one for all dropped tokens and one to keep")


class Models:
    """The models given at start, by name; the first is the default."""

    def __init__(self, models: Sequence[Served | ServedSpeech]) -> None:
        if not models:
            raise ValueError("MODEL: give at least one model to serve")
        self.by_name: dict[str, Served | ServedSpeech] = {}
        for served in models:
            if served.name in self.by_name:
                raise ValueError(f"{served.name}: two models have this name; give them names: NAME=MODEL")
            self.by_name[served.name] = served

    def __iter__(self) -> Iterator[Served | ServedSpeech]:
        return iter(self.by_name.values())

    def named(self, name: str) -> Served | ServedSpeech:
        if name not in self.by_name:
            raise Problem(404, f"model: there is no model of this name; /v1/models lists {len(self.by_name)}")
        return self.by_name[name]

    def for_text(self, name: str | None) -> Served:
        """A model that reads text, by name; the first by default."""
        found = next((one for one in self if isinstance(one, Served)), None) if name is None else self.named(name)
        if not isinstance(found, Served):
            raise Problem(404, f"model: {name} does not read text" if name else "model: no model here reads text")
        return found

    def for_audio(self, name: str | None) -> ServedSpeech:
        """A model that reads audio, by name; the first by default."""
        first = next((one for one in self if isinstance(one, ServedSpeech)), None)
        found = first if name is None else self.named(name)
        if not isinstance(found, ServedSpeech):
            raise Problem(404, f"model: {name} does not read audio" if name else "model: no model here reads audio")
        return found

    def for_pair(self, source: str, target: str) -> Served:
        """The first model that translates from `source` to `target`."""
        for served in self:
            if isinstance(served, Served) and served.translates(source, target):
                return served
        raise Problem(400, f"{source!r} to {target!r} is not supported; /languages lists the pairs")


def own_pair(model: TextModel) -> tuple[str, str] | None:
    """The languages that a bilingual tokenizer names, as those of Marian checkpoints do."""
    tokenizer = model.tokenizers.source
    found = tuple(getattr(tokenizer, name, None) for name in ("source_lang", "target_lang"))
    return found if all(isinstance(name, str) and name for name in found) else None  # type: ignore[return-value]
