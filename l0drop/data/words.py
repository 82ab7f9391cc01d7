"""Map tokens of any tokenizer to words, by their characters in the text.

Words are separated by spaces and punctuation, and every punctuation mark is a word, as in `l0drop.data.tokenizer`; in
scripts without spaces every piece is a word.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerBase

Span = tuple[int, int]

_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
_CUTS = pre_tokenizers.Sequence(
    [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Split(Regex(r"[\p{P}$+<=>^`|~]"), "isolated"),
        pre_tokenizers.Split(Regex(_UNSPACED), "isolated"),
    ]
)


class TokenWords(NamedTuple):
    """The word number of each token of a text, None for special tokens; and the spans of the words."""

    numbers: list[int | None]
    spans: list[Span]

    @property
    def sizes(self) -> Counter[int | None]:
        """The number of tokens of each word."""
        return Counter(self.numbers)

    def word(self, text: str, number: int) -> str:
        """The text of a word."""
        start, end = self.spans[number]
        return text[start:end].rstrip()


def token_words(text: str, tokens: Sequence[Span | None]) -> TokenWords:
    """Assign tokens, given by their spans, to words: each token belongs to the word that it begins in.

    White space belongs to the word after it. A word extends to the end of its last token.
    """
    spans = [span for _, span in _CUTS.pre_tokenize_str(str(text))]
    owner: list[int] = []
    for number, (_, end) in enumerate(spans):
        owner += [number] * (end - len(owner))
    numbers: list[int | None] = []
    for token in tokens:
        if token is None or not spans:
            numbers.append(None)
            continue
        number = owner[min(token[0], len(owner) - 1)]
        numbers.append(number)
        spans[number] = (spans[number][0], max(spans[number][1], token[1]))
    return TokenWords(numbers, spans)


def token_spans(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], encoding: BatchEncoding
) -> list[list[Span | None]]:
    """The span of each token of `tokenizer(texts)`; None for special tokens."""
    if encoding.is_fast:
        return [
            [None if special else span for span, special in zip(row.offsets, row.special_tokens_mask, strict=True)]
            for row in encoding.encodings or []
        ]
    return [
        _found(tokenizer, text, list(map(int, ids))) for text, ids in zip(texts, encoding["input_ids"], strict=True)
    ]


def _found(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[Span | None]:
    """The same for a slow tokenizer, which has no offsets: match its pieces with the text by character."""
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    pieces = tokenizer.tokenize(text)
    if len(pieces) != special.count(0):
        raise ValueError(
            f"{type(tokenizer).__name__}: {text[:60]!r} has {len(pieces)} pieces but {special.count(0)} tokens; "
            "remove special tokens from the text"
        )
    characters, positions = _visible(text)
    written = [_visible(piece.replace("▁", " "))[0] for piece in pieces]
    joined = "".join(written)
    if joined == characters:
        match = list(range(len(joined)))
    else:  # the tokenizer rewrote some characters: they follow the last match before them
        match, last = [], -1
        found = {
            block.a + i: block.b + i
            for block in SequenceMatcher(None, joined, characters, autojunk=False).get_matching_blocks()
            for i in range(block.size)
        }
        for i in range(len(joined)):
            last = found.get(i, last)
            match.append(last if i in found else min(last + 1, len(characters) - 1))
    spans: list[Span] = []
    at = 0
    for piece in written:
        first = positions[match[at]] if at < len(match) and positions else len(text)
        at += len(piece)
        spans.append((first, positions[match[at - 1]] + 1 if piece and positions else first))
    rest = iter(spans)
    return [None if added else next(rest) for added in special]


def _visible(text: str) -> tuple[str, list[int]]:
    """Compatibility-composed characters (NFKC) without white space, and the index of each in the text."""
    composed = [(c, i) for i, character in enumerate(text) for c in unicodedata.normalize("NFKC", character)]
    visible = [(c, i) for c, i in composed if not c.isspace()]
    return "".join(c for c, _ in visible), [i for _, i in visible]
