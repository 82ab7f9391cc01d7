"""Transcripts as Whisper's target tokens: its prompt, the text, EOS."""

from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from l0drop.data.tokenizer import fingerprint

NO_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose transcripts Whisper does not begin with a space."""


@dataclass(frozen=True, eq=False)
class SpeechTargets:
    """The target tokens of a Whisper for one language, without timestamps.

    prompt: the tokens that every output begins with: start, language and task of a multilingual model, no timestamps.
    They are given to the decoder, and have no loss.
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
