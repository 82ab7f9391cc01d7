"""Penn tags for the words of a text, by a built-in averaged perceptron or other taggers.

| name          | source of the tags                            | languages                                   |
|---------------|-----------------------------------------------|---------------------------------------------|
| `perceptron`  | the tagger here, with l0drop-tagger's weights | English                                     |
| `nltk`        | nltk, if it and its weights are installed     | English                                     |
| `spacy:MODEL` | a spaCy model, if it is installed             | English models; others do not use Penn tags |
| `pretagged`   | the text itself: `The_DT house_NN ._.`        | any                                         |

Tagged words are spans of characters, so that the tokens of any tokenizer can be matched with them.
"""

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

FORMAT = 1
SCALE = 10  # weights are stored as whole tenths
PRETAGGED = "pretagged"
TAGGERS = ("perceptron", "nltk", "spacy", PRETAGGED)

_WORDS_AT_ONCE = 20_000  # words tagged at once, which bounds memory
_SENTENCE_END = frozenset(".!?")


class TaggedWord(NamedTuple):
    """A word's span in its text, in characters, and its Penn tag."""

    start: int
    end: int
    tag: str


class Tagger(Protocol):
    """Tags texts. `identity` changes whenever the results would."""

    @property
    def identity(self) -> str: ...

    def __call__(self, texts: Sequence[str]) -> list[list[TaggedWord]]: ...


def open_tagger(name: str = "perceptron", language: str = "en") -> Tagger:
    """The tagger of that name; ValueError if it is not installed or does not know the language."""
    kind, _, model = name.partition(":")
    if kind not in TAGGERS or (model and kind != "spacy"):
        raise ValueError(f"tagger: expected {', '.join(TAGGERS)} or spacy:MODEL, got {name!r}")
    if kind == PRETAGGED:
        return Pretagged()
    if language != "en" and not model:
        raise ValueError(
            f"`language`: {name} tags English, not {language!r}, and rules by part of speech need tags; use text "
            "that has Penn tags (word_TAG) with the tagger pretagged, or a rule that needs no tags: "
            "freq, inv_freq, group, random, norm"
        )
    match kind:
        case "nltk":
            return NltkTagger()
        case "spacy":
            return SpacyTagger(model or "en_core_web_sm")
        case _:
            return english_tagger()


# --- words ------------------------------------------------------------------------------------------------------------

_CLITIC = r"(?i:s|m|re|ve|ll|d)\b"
_NOT = r"(?i:n['’]t)\b"
_WORD = re.compile(
    rf"""
      (?:https?://|www\.)\S*[\w/]                        # a web address
    | [\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+                   # a mail address
    | (?:[^\W\d_]\.){{2,}}                               # U.S., e.g., p.m.
    | (?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Lt|Sgt|Sen|Rep|Gov|St|Mt|Ft|Jr|Sr|Inc|Corp|Co|Ltd|Bros|vs|etc)\.(?=\s+\w)
    | (?:Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec|[A-Z])\.(?=\s+\w)
    | \d+(?:[.,:/]\d+)*(?:st|nd|rd|th|s)?\b              # 1,000.50, 10:30, 3rd
    | \w+?(?={_NOT}) | {_NOT}                             # do|n't
    | (?<=\w)['’]{_CLITIC}                               # dog|'s
    | \w+(?:['’](?!{_CLITIC})\w+)*                       # house, o'clock
    | [.!?]{{2,}} | -{{2,}}                              # ..., ?!, --
    | \S
    """,
    re.VERBOSE,
)


def split_words(text: str) -> list[tuple[int, int]]:
    """Spans of the words of English text, split as in the Penn treebank: punctuation and clitics are separate words."""
    return [match.span() for match in _WORD.finditer(text)]


# --- the perceptron ---------------------------------------------------------------------------------------------------

OFFSETS = (0, -1, 1, -2, 2)
"""Positions, relative to the word to tag, of the words that features are made of."""


def word_features(word: str | None, offset: int) -> list[str]:
    """Features of the word at an offset from the word to tag; None is beyond the sentence."""
    if word is None:
        return [f"{offset} -"]
    form = _form(word)
    features = [f"{offset}w {form}"]
    if abs(offset) < 2:
        features += [f"{offset}s {form[-3:]}", f"{offset}x {_shape(word)}"]
    if offset == 0:
        features += ["bias", f"s {form[-2:]}", f"s {form[-4:]}", f"p {form[0]}"]
    return features


def tag_features(before: str, second: str) -> list[str]:
    """Features of the two tags before a word; "-" is before the sentence."""
    return [f"t {before}", f"u {second}", f"tu {before} {second}"]


def _form(word: str) -> str:
    if word[0].isdigit():
        return "!year" if word.isdigit() and len(word) == 4 else "!number"
    if "@" in word[1:] or word.startswith(("http", "www.")):
        return "!address"
    return word.lower().replace("’", "'")


def _shape(word: str) -> str:
    """Kinds of characters, repetitions collapsed: Xx for House, X.X. for U.S."""
    shape = ""
    for character in word[:8]:
        kind = "X" if character.isupper() else "x" if character.isalpha() else "9" if character.isdigit() else character
        shape += kind if not shape.endswith(kind) else ""
    return shape


class PerceptronTagger:
    """A linear model that tags from left to right: the best tag given the surrounding words and the two tags before.

    Sentences are tagged in parallel: the scores of word features are summed for all of them at once, and step t tags
    the t-th word of every sentence.
    """

    def __init__(self, tags: Sequence[str], weights: dict[str, Sequence[int]], identity: str) -> None:
        """`weights` maps features to a flat list of tag, weight × SCALE, tag, weight × SCALE, ..."""
        self.tags, self.identity = tuple(tags), identity
        self._rows = {feature: row for row, feature in enumerate(weights, 1)}  # row 0: unknown features
        self._matrix = np.zeros((len(weights) + 1, len(tags)), dtype=np.float32)
        for row, flat in enumerate(weights.values(), 1):
            self._matrix[row, flat[::2]] = np.asarray(flat[1::2], dtype=np.float32) / SCALE
        names = (*tags, "-")
        features = [tag_features(before, second) for before in names for second in names]
        self._after = self._scores(features).reshape(len(names), len(names), len(tags))  # [before, second, tag]

    @classmethod
    def read(cls, file: Path) -> "PerceptronTagger":
        """Read a tagger's weights from a file."""
        packed = file.read_bytes()
        stored = json.loads(gzip.decompress(packed))
        if stored.get("format") != FORMAT:
            raise ValueError(f"{file}: format {stored.get('format')}, but this version reads format {FORMAT}")
        return cls(stored["tags"], stored["weights"], f"perceptron {hashlib.sha256(packed).hexdigest()[:16]}")

    def __call__(self, texts: Sequence[str]) -> list[list[TaggedWord]]:
        spans = [split_words(text) for text in texts]
        words = [[text[start:end] for start, end in row] for text, row in zip(texts, spans, strict=True)]
        cuts = [list(_sentences(row)) for row in words]
        tags = iter(self.tag([words[i][start:end] for i, row in enumerate(cuts) for start, end in row]))
        rows = [[tag for _ in row for tag in next(tags)] for row in cuts]
        return [
            [TaggedWord(*span, tag) for span, tag in zip(span_row, tag_row, strict=True)]
            for span_row, tag_row in zip(spans, rows, strict=True)
        ]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tags of sentences that are split into words."""
        tagged: list[list[str]] = []
        while len(tagged) < len(sentences):
            end, size = len(tagged), 0
            while end < len(sentences) and (size == 0 or size + len(sentences[end]) <= _WORDS_AT_ONCE):
                size += len(sentences[end])
                end += 1
            tagged += self._tag(sentences[len(tagged) : end])
        return tagged

    def _tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        lengths = np.array([len(sentence) for sentence in sentences])
        scores, starts = self._word_scores(sentences, lengths)
        order = np.argsort(-lengths, kind="stable")
        result = np.zeros(len(scores), dtype=np.int64)
        before = second = np.full(len(sentences), len(self.tags))
        for step in range(lengths.max(initial=0)):
            alive = order[: int((lengths > step).sum())]
            words = starts[alive] + step
            result[words] = (scores[words] + self._after[before[: len(alive)], second[: len(alive)]]).argmax(1)
            before, second = result[words], before[: len(alive)]
        return [
            [self.tags[tag] for tag in result[start : start + length]]
            for start, length in zip(starts, lengths, strict=True)
        ]

    def _word_scores(self, sentences: Sequence[Sequence[str]], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of word features for all sentences end to end, with two empty words between them; and their starts."""
        kinds: dict[str | None, int] = {None: 0}
        index = [0, 0]
        starts = np.concatenate([[0], np.cumsum(lengths + 2)[:-1]]).astype(np.int64) + 2
        for sentence in sentences:
            index += [kinds.setdefault(word, len(kinds)) for word in sentence]
            index += [0, 0]
        scores = np.zeros((len(index), len(self.tags)), dtype=np.float32)
        for offset in OFFSETS:
            table = self._scores([word_features(word, offset) for word in kinds])
            scores += table[np.roll(np.array(index), -offset)]
        return scores, starts

    def _scores(self, features: Sequence[Sequence[str]]) -> np.ndarray:
        """[lists, tags]: the summed weights of each list of features."""
        longest = max(map(len, features))
        rows = [[self._rows.get(feature, 0) for feature in one] + [0] * (longest - len(one)) for one in features]
        return self._matrix[np.array(rows)].sum(1)


def _sentences(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Spans of the sentences in a text: the tagger was trained on single sentences."""
    start = 0
    for end, word in enumerate(words, 1):
        if end == len(words) or _SENTENCE_END.issuperset(word):
            yield start, end
            start = end


@functools.cache
def english_tagger() -> PerceptronTagger:
    """The English tagger with the weights of the distribution l0drop-tagger."""
    try:
        from l0drop_tagger import WEIGHTS
    except ImportError as error:
        raise ValueError(
            "tagger: l0drop-tagger, which holds the weights of the tagger perceptron, is not installed; run "
            "pip install ./packages/l0drop-tagger in a checkout of l0drop, or use the tagger nltk, spacy or pretagged"
        ) from error
    return PerceptronTagger.read(WEIGHTS)


# --- other taggers ----------------------------------------------------------------------------------------------------


class NltkTagger:
    """nltk's tagger, applied to the words of `split_words`."""

    def __init__(self) -> None:
        try:
            import nltk
        except ImportError as error:
            raise ValueError("tagger: nltk is not installed; pip install nltk, or use the tagger perceptron") from error
        self._tag: Any = nltk.pos_tag_sents
        self.identity = f"nltk {nltk.__version__}"
        try:
            self._tag([["word"]])
        except LookupError as error:
            raise ValueError(
                "tagger: nltk is installed, but its weights are not; get them with "
                "python -m nltk.downloader averaged_perceptron_tagger_eng, or use the tagger perceptron"
            ) from error

    def __call__(self, texts: Sequence[str]) -> list[list[TaggedWord]]:
        spans = [split_words(text) for text in texts]
        words = [[text[start:end] for start, end in row] for text, row in zip(texts, spans, strict=True)]
        return [
            [TaggedWord(*span, tag) for span, (_, tag) in zip(row, tagged, strict=True)]
            for row, tagged in zip(spans, self._tag(words), strict=True)
        ]


class SpacyTagger:
    """A spaCy model, which splits text into words itself."""

    def __init__(self, model: str) -> None:
        try:
            import spacy
        except ImportError as error:
            raise ValueError(
                "tagger: spaCy is not installed; pip install spacy, or use the tagger perceptron"
            ) from error
        try:
            self._model: Any = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
        except OSError as error:
            raise ValueError(
                f"tagger: spaCy has no model {model!r}; python -m spacy download {model}, or use the tagger perceptron"
            ) from error
        self.identity = f"spacy {spacy.__version__} {model} {self._model.meta['version']}"

    def __call__(self, texts: Sequence[str]) -> list[list[TaggedWord]]:
        return [
            [TaggedWord(t.idx, t.idx + len(t.text), t.tag_) for t in document if not t.is_space]
            for document in self._model.pipe(map(str, texts))
        ]


class TaggedText(str):
    """Text that carries its tags: the words of `The_DT house_NN`, separated by single spaces, and their tags."""

    words: tuple[TaggedWord, ...]

    @classmethod
    def read(cls, line: str) -> "TaggedText":
        """Read a line; ValueError if a word has no tag."""
        words, tagged, start = [], [], 0
        for item in line.split():
            word, _, tag = item.rpartition("_")
            if not word or not tag:
                raise ValueError(f"{item!r} has no tag; {PRETAGGED} text is written as word_TAG word_TAG ...")
            words.append(word)
            tagged.append(TaggedWord(start, start + len(word), tag))
            start += len(word) + 1
        text = cls(" ".join(words))
        text.words = tuple(tagged)
        return text

    def __radd__(self, before: str) -> str:
        """Keep the tags after an empty prefix only: any other prefix has no tags."""
        return before + str(self) if before else self


class Pretagged:
    """Returns the tags of texts that are `TaggedText`."""

    identity = PRETAGGED

    def __call__(self, texts: Sequence[str]) -> list[list[TaggedWord]]:
        for text in texts:
            if not isinstance(text, TaggedText):
                raise ValueError(
                    f"tagger: {PRETAGGED} needs text as word_TAG, read by TaggedText.read; {text[:60]!r} has no tags"
                )
        return [list(text.words) for text in texts if isinstance(text, TaggedText)]
