"""Map tokens of any tokenizer to words, by their characters in the text.

Words are separated by spaces and punctuation, and every punctuation mark is a word, as in `l0drop.data.tokenizer`; in
scripts without spaces every piece is a word.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerBase

from l0drop.data.offsets import Span, own_spans, spans

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
    words = [span for _, span in _CUTS.pre_tokenize_str(str(text))]
    owner: list[int] = []
    for number, (_, end) in enumerate(words):
        owner += [number] * (end - len(owner))
    numbers: list[int | None] = []
    for token in tokens:
        if token is None or not words:
            numbers.append(None)
            continue
        number = owner[min(token[0], len(owner) - 1)]
        numbers.append(number)
        words[number] = (words[number][0], max(words[number][1], token[1]))
    return TokenWords(numbers, words)


def token_spans(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], encoding: BatchEncoding
) -> list[list[Span | None]]:
    """The span of each token of `tokenizer(texts)`; None for special tokens.

    A token of a slow tokenizer that is not found in the text is empty, before the next visible character.
    """
    if encoding.is_fast:
        return own_spans(encoding)
    return [
        _all_placed(tokenizer, text, list(map(int, ids)), found)
        for text, ids, found in zip(texts, encoding["input_ids"], spans(tokenizer, texts, encoding), strict=True)
    ]


def _all_placed(
    tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int], found: list[Span | None]
) -> list[Span | None]:
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    if (pieces := len(tokenizer.tokenize(text))) != special.count(0):
        raise ValueError(
            f"{type(tokenizer).__name__}: {text[:60]!r} has {pieces} pieces but {special.count(0)} tokens; "
            "remove special tokens from the text"
        )
    placed: list[Span | None] = []
    at = 0
    for span, is_special in zip(found, special, strict=True):
        if span is None:
            at += len(text[at:]) - len(text[at:].lstrip())
        placed.append(None if is_special else span or (at, at))
        at = at if span is None else span[1]
    return placed
