"""Character offsets of source tokens: from a fast tokenizer, or for a slow one by searching the text."""

import unicodedata
from collections.abc import Sequence
from itertools import chain

from transformers import BatchEncoding, ByT5Tokenizer, PreTrainedTokenizerBase

Span = tuple[int, int]
"""Start and end in characters."""

_SPACE = "▁"
_REACH = 64  # maximum distance in characters between an unknown token and the next known piece


def spans(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], encoding: BatchEncoding) -> list[list[Span | None]]:
    """One span per token of each text, where `encoding` is `tokenizer(texts)`, without leading white space.

    None for a token that the tokenizer added or that was not found.
    """
    if encoding.is_fast:
        return [
            [_visible(text, span) for span in found] for text, found in zip(texts, own_spans(encoding), strict=True)
        ]
    if isinstance(tokenizer, ByT5Tokenizer):
        return [_bytes(text, len(ids)) for text, ids in zip(texts, encoding["input_ids"], strict=True)]
    special = frozenset(tokenizer.all_special_tokens)
    found = []
    for text, ids in zip(texts, encoding["input_ids"], strict=True):
        pieces = [piece if piece not in special else None for piece in tokenizer.convert_ids_to_tokens(ids)]
        found.append(search(text, pieces, [token == tokenizer.unk_token_id for token in ids]))
    return found


def own_spans(encoding: BatchEncoding) -> list[list[Span | None]]:
    """The spans that a fast tokenizer reports; white space may belong to the token after it."""
    return [
        [None if special else span for span, special in zip(row.offsets, row.special_tokens_mask, strict=True)]
        for row in encoding.encodings or []
    ]


def search(text: str, pieces: Sequence[str | None], unknown: Sequence[bool]) -> list[Span | None]:
    """Spans of SentencePiece pieces, found one after the other in the text; a piece of None is a special token.

    Pieces are normalized (NFKC, single spaces), so characters are compared in that form. A single unknown token gets
    the text between its known neighbours.
    """
    characters, origins = _normalized(text)
    spans: list[Span | None] = []
    at, exact = 0, True
    for piece, is_unknown in zip(pieces, unknown, strict=True):
        surface = "" if piece is None or is_unknown else piece.replace(_SPACE, "")
        found = characters.find(surface, at, at + len(surface) + (0 if exact else _REACH)) if surface else -1
        if found < 0:
            spans.append(None)
            exact = exact and not is_unknown and not surface
            continue
        at, exact = found + len(surface), True
        spans.append((origins[found][0], origins[at - 1][1]))
    return _with_unknown(text, spans, unknown)


def _with_unknown(text: str, spans: list[Span | None], unknown: Sequence[bool]) -> list[Span | None]:
    """Give each single unknown token the visible text between its neighbours."""
    filled = list(spans)
    for i, is_unknown in enumerate(unknown):
        alone = not any(unknown[max(0, i - 1) : i]) and not any(unknown[i + 1 : i + 2])
        if is_unknown and alone:
            start = next((span[1] for span in reversed(spans[:i]) if span), 0)
            end = next((span[0] for span in spans[i + 1 :] if span), len(text))
            gap = text[start:end]
            start += len(gap) - len(gap.lstrip())
            end -= len(gap) - len(gap.rstrip())
            filled[i] = (start, end) if start < end else None
    return filled


def _visible(text: str, span: Span | None) -> Span | None:
    """A span without leading white space, unless it is only white space."""
    if span is None:
        return None
    piece = text[span[0] : span[1]]
    return span[1] - (len(piece.lstrip()) or len(piece)), span[1]


def _bytes(text: str, tokens: int) -> list[Span | None]:
    """ByT5: one token per byte of UTF-8, then EOS."""
    found = chain.from_iterable([(i, i + 1)] * len(c.encode()) for i, c in enumerate(text))
    spans: list[Span | None] = list(found)
    return spans + [None] * (tokens - len(spans))


def _normalized(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text in NFKC without white space, and the span in `text` that each character comes from."""
    characters: list[str] = []
    origins: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and unicodedata.combining(text[end]):
            continue  # a combining mark belongs to the letter before it
        for character in unicodedata.normalize("NFKC", text[start:end]):
            if not character.isspace():
                characters.append(character)
                origins.append((start, end))
        start = end
    return "".join(characters), origins
