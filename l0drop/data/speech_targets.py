"""Transcripts as Whisper's target tokens: its prompt, the text with or without times, EOS.

A text with times is written as Whisper's tokens are: <|0.00|> the first part<|4.20|><|4.60|> the next one<|8.00|>.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from l0drop.data.tokenizer import fingerprint
from l0drop.models.whisper import ROW_SECONDS

NO_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose transcripts Whisper does not begin with a space."""
TIME = re.compile(r"<\|(\d+\.\d\d)\|>")


def timed_text(segments: Iterable[tuple[float, float, str]]) -> str:
    """Segments, each with its start and end in seconds, as a text with times; blank ones are left out."""
    return "".join(
        f"{_written(start)} {' '.join(text.split())}{_written(end)}" for start, end, text in segments if text.strip()
    )


def _written(seconds: float) -> str:
    return f"<|{round(seconds / ROW_SECONDS) * ROW_SECONDS:.2f}|>"


@dataclass(frozen=True, eq=False)
class SpeechTargets:
    """The target tokens of a Whisper for one language.

    prompt: the tokens that every output without times begins with: start, language and task of a multilingual model, no
    timestamps. They are given to the decoder, and have no loss. An output with times has all but the last of them.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: tuple[int, ...]
    eos: int
    language: str

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig, language: str, name: str
    ) -> "SpeechTargets":
        """The targets for a model's generation_config; `name` is the model's, for messages."""
        start, eos = settings.decoder_start_token_id, settings.eos_token_id
        eos = eos[0] if isinstance(eos, list) else eos
        untimed = getattr(settings, "no_timestamps_token_id", None)
        if start is None or eos is None or untimed is None:
            raise ValueError(
                f"{name}: generation_config.json lacks decoder_start_token_id, eos_token_id or no_timestamps_token_id, "
                "which a Whisper's has"
            )
        if not getattr(settings, "is_multilingual", False):
            if language != "en":
                raise ValueError(f"data.language: {name} knows English alone, not {language!r}; remove this key")
            return cls(tokenizer, (start, untimed), eos, language)
        languages, tasks = getattr(settings, "lang_to_id", {}), getattr(settings, "task_to_id", {})
        if f"<|{language}|>" not in languages:
            known = ", ".join(sorted(code.strip("<|>") for code in languages)[:8])
            raise ValueError(f"data.language: {name} has no language {language!r}; it has {len(languages)}: {known}")
        if "transcribe" not in tasks:
            raise ValueError(f"{name}: task_to_id in generation_config.json lacks transcribe")
        return cls(tokenizer, (start, languages[f"<|{language}|>"], tasks["transcribe"], untimed), eos, language)

    @property
    def timed_prompt(self) -> tuple[int, ...]:
        return self.prompt[:-1]

    @property
    def first_time(self) -> int:
        """The token of the time 0, which follows the one for no timestamps."""
        return self.prompt[-1] + 1

    @property
    def generation(self) -> dict[str, Any]:
        """The settings with which Whisper's generate gives such targets."""
        settings: dict[str, Any] = {"return_timestamps": False}
        return settings if len(self.prompt) == 2 else {**settings, "language": self.language, "task": "transcribe"}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Identifies the tokens that texts become, for manifests."""
        tokens = {"prompt": list(self.prompt), "eos": self.eos}
        return {"tokenizer": fingerprint(self.tokenizer), **tokens, "generation": self.generation}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without prompt and EOS; it begins with a space, as Whisper's outputs do."""
        space = "" if self.language in NO_SPACES else " "
        spaced = [space + " ".join(text.split()) for text in texts]
        return [
            [int(token) for token in ids]
            for ids in self.tokenizer(spaced, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        ]

    def encode_timed(self, text: str, rows: int) -> list[int]:
        """The tokens of a text with times, without prompt and EOS; none for a blank one.

        rows: the number of encoder rows, of 20 ms, that the audio covers. ValueError says what is wrong with the text.
        """
        if not text.strip():
            return []
        before, *parts = TIME.split(text.strip())
        times, texts = [_row(part, rows) for part in parts[::2]], parts[1::2]
        if before.strip() or len(times) % 2 or any(part.strip() for part in texts[1::2]):
            raise ValueError("expected every part of the text between two times: <|0.00|> text<|4.20|>")
        if not all(part.strip() for part in texts[::2]):
            raise ValueError("there are two times without a text in between")
        if sorted(times) != times:
            raise ValueError("its times do not rise")
        spoken = self.encode(texts[::2])
        return [
            token
            for start, ids, end in zip(times[::2], spoken, times[1::2], strict=True)
            for token in (self.first_time + start, *ids, self.first_time + end)
        ]


def _row(time: str, rows: int) -> int:
    """The number of a time's token, counted from that of 0 seconds."""
    row = round(float(time) / ROW_SECONDS)
    if abs(row * ROW_SECONDS - float(time)) > 1e-6:
        raise ValueError(f"the time {time} is no multiple of {ROW_SECONDS} seconds")
    if row > rows:
        raise ValueError(f"the time {time} is after the end of the audio, which has {rows * ROW_SECONDS:.2f} seconds")
    return row
