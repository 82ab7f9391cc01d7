"""Hints: facts about source tokens that rules and analyses need in addition to token ids, computed from text.

| hint       | each token's                                                                                        |
|------------|-----------------------------------------------------------------------------------------------------|
| `label`    | number in `l0drop.core.groups.LABELS`: a Penn tag, BPEH, BPEO or EOS; `group_of` gives its group    |
| `frequent` | share of the training tokens, in billionths, in words at least as frequent as this token's word     |
| `rare`     | the same for words at least as rare; words that are not in the training text are the rarest         |

`l0drop.data.words` defines words. A word's tag is the tag of the tagger's word at its first character.

An annotator's settings are stored in the model folder as `hints.json`, so that later texts are annotated in the same
way: `annotator_for(folder, tokenizer)(texts, tokenizer(texts))`.
"""

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.utils import cached_file

from l0drop.core.groups import LABELS, label_number
from l0drop.data.tagger import PRETAGGED, TaggedText, TaggedWord, Tagger, open_tagger
from l0drop.data.whole import write_whole
from l0drop.data.words import TokenWords, token_spans, token_words
from l0drop.models.patterns import FREQUENT, LABEL, RARE, WHOLE

FORMAT = 1
FILE = "hints.json"
NAMES = (LABEL, FREQUENT, RARE)
LISTED = 50_000
"""Number of words in the stored frequencies; all rarer words count as one word."""

# --- labels and frequencies -------------------------------------------------------------------------------------------


def labels(words: TokenWords, tagged: Sequence[TaggedWord]) -> list[int]:
    """The number of each token's label: EOS, BPEH, BPEO, or the tag of a word that was not split."""
    starts = [word.start for word in tagged]
    sizes, seen, numbers = words.sizes, set(), []
    for number in words.numbers:
        if number is None:
            label = "EOS"
        elif sizes[number] > 1:
            label = "BPEO" if number in seen else "BPEH"
        else:
            label = tagged[max(0, bisect_right(starts, words.spans[number][0]) - 1)].tag
        seen.add(number)
        numbers.append(label_number(label))
    return numbers


CountedToken = tuple[str, bool] | None
"""A token's word, and whether the token is its first one; None for special tokens."""


def counted_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], encoding: BatchEncoding
) -> list[list[CountedToken]]:
    """The tokens of some texts, as `Frequencies.count` takes them."""
    rows: list[list[CountedToken]] = []
    for text, spans in zip(texts, token_spans(tokenizer, texts, encoding), strict=True):
        words = token_words(text, spans)
        seen: set[int | None] = set()
        row: list[CountedToken] = []
        for number in words.numbers:
            row.append(None if number is None else (words.word(text, number), number not in seen))
            seen.add(number)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Frequencies:
    """Words of the training text, most frequent first, each with the number of tokens in all its occurrences.

    tokens: number of tokens in the whole text, including EOS. beyond: number of tokens in words that are not listed.
    """

    words: Mapping[str, int]
    beyond: int
    tokens: int
    _shares: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares, before, listed = {}, 0, sum(self.words.values())
        for word, tokens in self.words.items():
            shares[word] = (self._share(before + tokens), self._share(self.beyond + listed - before))
            before += tokens
        object.__setattr__(self, "_shares", shares)

    @classmethod
    def count(cls, rows: Iterable[Sequence[CountedToken]], listed: int = LISTED) -> "Frequencies":
        """Count the tokens of a text; equally frequent words are ranked alphabetically."""
        occurrences: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        total = 0
        for row in rows:
            total += len(row)
            for token in row:
                if token is not None:
                    tokens[token[0]] += 1
                    occurrences[token[0]] += token[1]
        ranked = sorted(tokens, key=lambda word: (-occurrences[word], word))
        words = {word: tokens[word] for word in ranked[:listed]}
        return cls(words, sum(tokens.values()) - sum(words.values()), total)

    def shares(self, word: str) -> tuple[int, int]:
        """The hints `frequent` and `rare` of a word."""
        return self._shares.get(word) or (WHOLE, self._share(self.beyond))

    def _share(self, tokens: int) -> int:
        return -(-tokens * WHOLE // self.tokens)  # rounded up, so that the true share never exceeds it


# --- the annotator ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TextAnnotator:
    """Computes hints from texts and their encodings: an `Annotator` for `prepare_corpus` and for decoding.

    names: the hints to compute. tagger, language: for `label`; see `open_tagger`. frequencies: for `frequent`, `rare`.
    """

    names: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase
    tagger: str = "perceptron"
    language: str = "en"
    frequencies: Frequencies | None = None
    _tagger: Tagger | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in NAMES]
        if unknown:
            raise ValueError(f"hints: no hint is called {unknown[0]!r} (known: {', '.join(NAMES)})")
        if self.counts and self.frequencies is None:
            raise ValueError("frequencies: the hints frequent and rare need the word frequencies of the training text")
        object.__setattr__(self, "_tagger", open_tagger(self.tagger, self.language) if self.tags else None)

    @property
    def tags(self) -> bool:
        return LABEL in self.names

    @property
    def counts(self) -> bool:
        return FREQUENT in self.names or RARE in self.names

    @cached_property
    def fingerprint(self) -> str:
        made_with = [FORMAT, LABELS, self._tagger.identity if self._tagger else None, self._stored()]
        return hashlib.sha256(json.dumps(made_with).encode()).hexdigest()

    def read(self, text: str) -> str:
        """The text for the tokenizer. From pretagged text the tags are removed, and kept for `__call__`."""
        has_tags = not isinstance(text, TaggedText) and self.tags and self.tagger == PRETAGGED
        return TaggedText.read(text) if has_tags else text

    def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, list[list[int]]]:
        """For each hint and text, one integer per token of `encoding` = `tokenizer(texts)`, padded or not."""
        spans = token_spans(self.tokenizer, texts, encoding)
        rows = [token_words(text, row) for text, row in zip(texts, spans, strict=True)]
        hints: dict[str, list[list[int]]] = {}
        if self._tagger is not None:
            hints[LABEL] = [labels(words, tagged) for words, tagged in zip(rows, self._tagger(texts), strict=True)]
        if self.frequencies is not None:
            shares = [self._shares(text, words, self.frequencies) for text, words in zip(texts, rows, strict=True)]
            hints[FREQUENT] = [[frequent for frequent, _ in row] for row in shares]
            hints[RARE] = [[rare for _, rare in row] for row in shares]
        return {name: hints[name] for name in self.names}

    @staticmethod
    def _shares(text: str, words: TokenWords, frequencies: Frequencies) -> list[tuple[int, int]]:
        known = {n: frequencies.shares(words.word(text, n)) for n in words.sizes if n is not None}
        return [(WHOLE, WHOLE) if number is None else known[number] for number in words.numbers]

    def save(self, folder: Path | str) -> None:
        """Write `hints.json` into a model folder, for `annotator_for`."""
        write_whole(Path(folder) / FILE, json.dumps(self._stored(), ensure_ascii=False) + "\n")

    def _stored(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"format": FORMAT, "names": list(self.names)}
        if self.tags:
            stored |= {"tagger": self.tagger, "language": self.language}
        if self.frequencies is not None:
            known = self.frequencies
            stored["frequencies"] = {"tokens": known.tokens, "beyond": known.beyond, "words": dict(known.words)}
        return stored


def annotator_for(model: Path | str, tokenizer: PreTrainedTokenizerBase) -> TextAnnotator | None:
    """The annotator saved with a model, in a folder or on the hub; None for a model that needs no hints."""
    local = Path(model).is_dir()
    found = Path(model) / FILE if local else _from_hub(str(model))
    if found is None or not found.exists():
        return None
    stored = json.loads(found.read_text(encoding="utf-8"))
    if stored.pop("format", None) != FORMAT:
        raise ValueError(f"{found}: this version reads format {FORMAT}; upgrade l0drop")
    frequencies = stored.pop("frequencies", None)
    return TextAnnotator(
        names=tuple(stored.pop("names")),
        tokenizer=tokenizer,
        frequencies=None if frequencies is None else Frequencies(**frequencies),
        **stored,
    )


def _from_hub(name: str) -> Path | None:
    file = cached_file(
        name, FILE, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    return None if file is None else Path(file)
