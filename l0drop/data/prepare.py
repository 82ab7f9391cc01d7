"""Tokenize parallel text into a corpus on disk; memory use does not grow with the text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from l0drop.data.corpus import MANIFEST, Summary, TokenizedCorpus, is_made_from, write_manifest
from l0drop.data.text import CorpusError, Pair, ParallelText
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import locked, whole_folder

CHUNK = 1_000  # pairs tokenized at once and held in memory
T = TypeVar("T")


class Annotator(Protocol):
    """Computes hints: for each of its `names`, and each text of a chunk, one integer per token of the encoding.

    `fingerprint` changes whenever the results would.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, Sequence[Sequence[int]]]: ...


def prepare_corpus(
    text: ParallelText,
    tokenizers: TokenizerPair,
    out_dir: Path | str,
    *,
    max_source: int,
    max_target: int,
    documents: bool = False,
    annotator: Annotator | None = None,
    progress: Callable[[int], None] | None = None,
    instead: Path | None = None,
) -> TokenizedCorpus:
    """Tokenize `text` into `out_dir`, or open the corpus there if it was made from the same text and settings.

    If the folder `instead` holds such a corpus, it is opened and nothing is written.

    Lines that are blank on one or both sides are skipped and counted. With `documents`, consecutive lines are joined
    by a space while both sides stay within their limits; a line that is blank on both sides ends a document, and the
    prefix of the text (`Prefixed`) is put before each document once. Sequences longer than `max_source` or `max_target`
    tokens are truncated, but keep their closing special tokens. `progress` receives the number of lines read so far.
    """
    out_dir = Path(out_dir)
    sides = _sides(text, tokenizers, max_source, max_target)
    request = {
        "inputs": text.inputs(),
        "tokenizers": tokenizers.fingerprints,
        "limits": {side.name: side.limit for side in sides},
        "documents": "prefixed once" if documents and _prefix(text) else documents,
        "annotator": None if annotator is None else annotator.fingerprint,
    }
    if instead is not None and is_made_from(TokenizedCorpus.open, instead, request):
        return TokenizedCorpus.open(instead)
    if not is_made_from(TokenizedCorpus.open, out_dir, request):
        with locked(out_dir):
            # another process may have written it while this one waited
            if not is_made_from(TokenizedCorpus.open, out_dir, request):
                check_replaceable(out_dir)
                with whole_folder(out_dir) as partial:
                    _write(partial, text, sides, request, annotator, progress)
    return TokenizedCorpus.open(out_dir)


def usable_pairs(
    text: ParallelText, tokenizers: TokenizerPair, *, max_source: int, max_target: int, documents: bool = False
) -> Iterator[Pair]:
    """The pairs that `prepare_corpus` turns into examples, as text and in order: full references for scoring."""
    sides = _sides(text, tokenizers, max_source, max_target)
    return _documents(text, sides, Summary()) if documents else _sentences(text, Summary())


def source_rows(
    text: ParallelText,
    tokenizers: TokenizerPair,
    per_token: Callable[[Sequence[str], BatchEncoding], Sequence[Sequence[T]]],
    *,
    max_source: int,
    max_target: int,
    documents: bool = False,
) -> Iterator[list[T]]:
    """The results of `per_token` for the source tokens of the examples that `prepare_corpus` makes, truncated alike."""
    side, *_ = sides = _sides(text, tokenizers, max_source, max_target)
    for chunk in _chunks(_documents(text, sides, Summary()) if documents else _sentences(text, Summary())):
        texts, _ = _texts(chunk)
        encoding = side.encode(texts)
        yield from _apply([side.cut(ids) for ids in encoding["input_ids"]], per_token(texts, encoding))


def _sides(text: ParallelText, tokenizers: TokenizerPair, max_source: int, max_target: int) -> list["_Side"]:
    sides = [_Side("source", tokenizers.source, max_source)]
    if not text.source_only:
        sides.append(_Side("target", tokenizers.target, max_target))
    return sides


class _Side:
    """Tokenizes the texts of one side into at most `limit` ids each."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, limit: int) -> None:
        self.name, self.limit = name, limit
        self._tokenizer = tokenizer
        # Text may end in an unknown word; only tokens that the tokenizer adds must survive truncation.
        self._special = frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.room = limit - len(self.encode([""])["input_ids"][0])
        if self.room < 1:
            raise ValueError(f"max_{name}={limit} leaves no room next to the {limit - self.room} special tokens")
        largest = max(tokenizer.get_vocab().values())
        self.dtype = np.dtype(np.uint16 if largest <= np.iinfo(np.uint16).max else np.uint32)

    def encode(self, texts: list[str], add_special_tokens: bool = True) -> BatchEncoding:
        side = {"text": texts} if self.name == "source" else {"text_target": texts}
        return self._tokenizer(
            **side, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False
        )

    def cut(self, ids: Sequence[int]) -> tuple[int, int]:
        """Start and end of the tokens to remove: the last ones before the closing special tokens."""
        if len(ids) <= self.limit:
            return len(ids), len(ids)
        closing = 0
        while closing < self.limit and ids[-closing - 1] in self._special:
            closing += 1
        return self.limit - closing, len(ids) - closing


class _Column:
    """A file to which integers are appended."""

    def __init__(self, path: Path, dtype: np.dtype, files: ExitStack) -> None:
        self.dtype, self.length = dtype, 0
        self._file = files.enter_context(path.open("wb"))

    def append(self, values: Iterable[int]) -> None:
        array = np.fromiter(values, dtype=np.int64)
        limits = np.iinfo(self.dtype)
        assert array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max)
        array.astype(self.dtype).tofile(self._file)
        self.length += len(array)


def _write(
    folder: Path,
    text: ParallelText,
    sides: list[_Side],
    request: Mapping[str, Any],
    annotator: Annotator | None,
    progress: Callable[[int], None] | None,
) -> None:
    summary = Summary()
    truncated = dict.fromkeys((side.name for side in sides), 0)
    layout = {f"{side.name}.ids": side.dtype for side in sides}
    layout |= {f"{side.name}.offsets": np.dtype(np.int64) for side in sides}
    layout |= {f"hints.{name}": np.dtype(np.int32) for name in (annotator.names if annotator else ())}
    with ExitStack() as files:
        columns = {name: _Column(folder / name, dtype, files) for name, dtype in layout.items()}
        for side in sides:
            columns[f"{side.name}.offsets"].append([0])
        for chunk in _chunks(_documents(text, sides, summary) if request["documents"] else _sentences(text, summary)):
            for side, texts in zip(sides, _texts(chunk), strict=False):
                encoding = side.encode(texts)
                cuts = [side.cut(ids) for ids in encoding["input_ids"]]
                truncated[side.name] += sum(start < end for start, end in cuts)
                rows = _apply(cuts, encoding["input_ids"])
                _check_not_empty(rows, chunk, side)
                ids, offsets = columns[f"{side.name}.ids"], columns[f"{side.name}.offsets"]
                offsets.append(ids.length + np.cumsum([len(row) for row in rows]))
                ids.append(chain.from_iterable(rows))
                if annotator and side.name == "source":
                    for name, hints in _annotate(annotator, texts, encoding).items():
                        columns[f"hints.{name}"].append(chain.from_iterable(_apply(cuts, hints)))
            summary.pairs += len(chunk)
            if progress:
                progress(summary.lines)
    if summary.pairs == 0:
        distilled = any("teacher" in item for item in request["inputs"])
        blank = "blank, or the teacher's output for it is" if distilled else "blank on some side"
        raise CorpusError(f"{_described(request)}: each of the {summary.lines} lines is {blank}")
    for side in sides:
        setattr(summary, f"truncated_{side.name}", truncated[side.name])
        setattr(summary, f"{side.name}_tokens", columns[f"{side.name}.ids"].length)
    write_manifest(
        folder, request, summary, {name: (column.dtype.name, column.length) for name, column in columns.items()}
    )


def _sentences(text: ParallelText, summary: Summary) -> Iterator[Pair]:
    """The pairs that have text on every side."""
    for pair in text:
        summary.lines += 1
        if pair.is_blank:
            summary.blank += 1
        elif pair.is_one_sided:
            summary.one_sided += 1
        else:
            yield pair


def _documents(text: ParallelText, sides: list[_Side], summary: Summary) -> Iterator[Pair]:
    """Consecutive pairs, joined while both sides stay within their limits; the prefix is put before each join once."""
    prefix = _prefix(text)
    rooms = [side.room for side in sides]
    if prefix:
        rooms[0] -= len(sides[0].encode([prefix], add_special_tokens=False)["input_ids"][0])
        if rooms[0] < 1:
            raise ValueError(f"max_source={sides[0].limit} leaves no room next to the prefix {prefix!r}")
    held: list[Pair] = []
    room = [0 for _ in sides]
    for pair, sizes in _measured(text, prefix, sides, summary):
        if held and (pair.is_blank or any(size > left for size, left in zip(sizes, room, strict=True))):
            yield _joined(held, prefix)
            held = []
        if pair.is_blank:
            continue
        if not held:
            room = rooms
        held.append(pair)
        room = [left - size for size, left in zip(sizes, room, strict=True)]
    if held:
        yield _joined(held, prefix)


def _prefix(text: ParallelText) -> str:
    """The prefix that a text puts before every source."""
    return str(getattr(text, "prefix", ""))


def _measured(
    text: ParallelText, prefix: str, sides: list[_Side], summary: Summary
) -> Iterator[tuple[Pair, list[int]]]:
    """Pairs without the prefix, with their token counts; blank pairs stay as borders, one-sided pairs are skipped."""
    for chunk in _chunks(text):
        usable = [p._replace(source=p.source.removeprefix(prefix)) for p in chunk if not p.is_one_sided]
        summary.lines += len(chunk)
        summary.one_sided += len(chunk) - len(usable)
        summary.blank += sum(pair.is_blank for pair in usable)
        if usable:
            encodings = [
                side.encode(texts, add_special_tokens=False)["input_ids"]
                for side, texts in zip(sides, _texts(usable), strict=False)
            ]
            for pair, *rows in zip(usable, *encodings, strict=True):
                yield pair, [len(ids) for ids in rows]


def _joined(pairs: list[Pair], prefix: str) -> Pair:
    sources, targets = _texts(pairs)
    return Pair(prefix + " ".join(sources), None if pairs[0].target is None else " ".join(targets), pairs[0].line)


def _texts(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    return [pair.source for pair in pairs], [pair.target or "" for pair in pairs]


def _annotate(annotator: Annotator, texts: list[str], encoding: BatchEncoding) -> dict[str, Sequence[Sequence[int]]]:
    hints = annotator(texts, encoding)
    sizes = [len(ids) for ids in encoding["input_ids"]]
    for name in annotator.names:
        if [len(values) for values in hints[name]] != sizes:
            raise ValueError(f"hint {name!r}: the annotator did not give one value for each source token")
    return {name: hints[name] for name in annotator.names}


def _apply(cuts: list[tuple[int, int]], rows: Sequence[Sequence[T]]) -> list[list[T]]:
    return [[*row[:start], *row[end:]] for row, (start, end) in zip(rows, cuts, strict=True)]


def _check_not_empty(rows: list[list[int]], pairs: list[Pair], side: _Side) -> None:
    for row, pair in zip(rows, pairs, strict=True):
        if not row:
            raise CorpusError(f"line {pair.line}: the tokenizer produces no token for the {side.name}; remove the line")


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _described(request: Mapping[str, Any]) -> str:
    return ", ".join(str(name) for item in request["inputs"] if (name := item.get("path") or item.get("name")))


def check_replaceable(folder: Path) -> None:
    """Raise CorpusError if a folder holds anything but a prepared corpus."""
    if folder.exists() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
        raise CorpusError(f"{folder} holds files that are not a prepared corpus: choose another folder")
