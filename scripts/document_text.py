"""Documents as examples of several lengths, from parallel text in which blank lines end documents.

Training text has every sentence three times: alone, in windows inside documents, and in whole documents joined to long
examples. So a model learns to translate at all lengths; long examples alone are too hard at the start. Validation and
test text has documents alone: windows first, then joined documents. Nothing crosses the splits, and nothing is random.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from l0drop.data.prepare import usable_pairs
from l0drop.data.text import Pair, TextFiles
from l0drop.data.tokenizer import TokenizerPair, load_tokenizers, train_tokenizer
from l0drop.data.whole import write_whole
from l0drop.runs.json_file import JsonFile

WINDOW, JOINED = 512, 1024
"""The longest examples in subwords on each side, EOS included."""
FULL = 0.6
"""Validation and test examples have at least this share of the longest source."""
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Documents(JsonFile):
    """`documents.json`: the numbers of scored examples by split and length, in the order of the lines."""

    COMMAND = "scripts/europarl_documents.py"

    vocabulary: int
    scored: dict[str, dict[str, int]]
    source_tokens: dict[str, dict[str, int]]

    def lines(self, split: str) -> dict[str, slice]:
        """The lines of each length."""
        found, start = {}, 0
        for length, count in self.scored[split].items():
            found[length] = slice(start, start + count)
            start += count
        return found


def write_documents(
    data: Path, out: Path, endings: tuple[str, str], vocabulary: int, window: int = WINDOW, joined: int = JOINED
) -> Documents:
    """Write train, valid and test into `out`, with the tokenizer, unless they are there."""
    file = out / "documents.json"
    if file.exists():
        return Documents.read(file)
    texts = {split: TextFiles(*(_found(data, split, ending) for ending in endings)) for split in SPLITS}
    if not (out / "tokenizer").is_dir():
        train_tokenizer(
            (pair.source for pair in texts["train"]),
            (pair.target or "" for pair in texts["train"]),
            vocab_size=vocabulary,
        ).save(out)
    tokenizers = load_tokenizers(out)
    scored: dict[str, dict[str, int]] = {}
    tokens: dict[str, dict[str, int]] = {}
    for split, text in texts.items():
        by_length = {
            str(window): [*usable_pairs(text, tokenizers, max_source=window, max_target=window, documents=True)],
            str(joined): [*whole_documents(text, tokenizers, joined)],
        }
        if split == "train":
            sentences = [pair for pair in text if not pair.is_blank and not pair.is_one_sided]
            pairs = sentences + [pair for found in by_length.values() for pair in found]
        else:
            sizes = {length: _sizes(tokenizers, found)[0] for length, found in by_length.items()}
            kept = {
                length: [n for n, size in enumerate(sizes[length]) if size >= FULL * int(length)]
                for length in by_length
            }
            pairs = [by_length[length][n] for length, numbers in kept.items() for n in numbers]
            scored[split] = {length: len(numbers) for length, numbers in kept.items()}
            tokens[split] = {length: sum(sizes[length][n] for n in numbers) for length, numbers in kept.items()}
        for ending, lines in zip(endings, zip(*((p.source, p.target) for p in pairs), strict=True), strict=True):
            write_whole(out / f"{split}.{ending}", "".join(f"{line}\n" for line in lines))
    found = Documents(len(tokenizers.source), scored, tokens)
    found.write(file)
    return found


def whole_documents(text: Iterable[Pair], tokenizers: TokenizerPair, limit: int) -> Iterator[Pair]:
    """Neighbouring documents, joined while both sides have at most `limit` subwords; longer ones are divided."""
    parts = [*usable_pairs(text, tokenizers, max_source=limit, max_target=limit, documents=True)]  # type: ignore[arg-type]
    held: list[Pair] = []
    room = (0, 0)
    for part, *sizes in zip(parts, *_sizes(tokenizers, parts), strict=True):
        if held and any(size > left for size, left in zip(sizes, room, strict=True)):
            yield _joined(held)
            held = []
        if not held:
            room = (limit - 1, limit - 1)
        held.append(part)
        room = (room[0] - sizes[0], room[1] - sizes[1])
    if held:
        yield _joined(held)


def _joined(pairs: list[Pair]) -> Pair:
    return Pair(" ".join(pair.source for pair in pairs), " ".join(pair.target or "" for pair in pairs), pairs[0].line)


def _sizes(tokenizers: TokenizerPair, pairs: list[Pair]) -> tuple[list[int], list[int]]:
    """The numbers of subwords of sources and targets, without EOS."""
    sources, targets = [pair.source for pair in pairs], [pair.target or "" for pair in pairs]
    one = tokenizers.source(sources, add_special_tokens=False)["input_ids"]
    other = tokenizers.target(text_target=targets, add_special_tokens=False)["input_ids"]
    return [len(ids) for ids in one], [len(ids) for ids in other]


def _found(data: Path, split: str, ending: str) -> Path:
    found = sorted(data.glob(f"{split}.{ending}*"))
    if not found:
        raise ValueError(f"{data}: no {split}.{ending}")
    return found[0]
