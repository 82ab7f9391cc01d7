"""Parallel text as a stream of pairs, from two files, TSV, JSONL or a Hugging Face dataset.

Readers yield every line, including blank ones: a blank line may end a document, and line n of the source belongs to
line n of the target. They can be iterated repeatedly, and hold one line in memory.
"""

import gzip
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from l0drop.extras import needed_for


class CorpusError(ValueError):
    """Text or a prepared corpus is unusable; the message names the file and the line."""


class Pair(NamedTuple):
    """One line of parallel text; `target` is None in source-only text."""

    source: str
    target: str | None
    line: int

    @property
    def is_blank(self) -> bool:
        """No text on any side: the end of a document."""
        return not self.source.strip() and not (self.target or "").strip()

    @property
    def is_one_sided(self) -> bool:
        """Text on one side, and none on the other."""
        return self.target is not None and bool(self.source.strip()) != bool(self.target.strip())


class ParallelText(Protocol):
    """Input of corpora and tokenizers."""

    @property
    def source_only(self) -> bool:
        """Whether every pair's target is None."""

    def __iter__(self) -> Iterator[Pair]:
        """All lines in order; each call starts at the first line."""

    def inputs(self) -> list[dict[str, Any]]:
        """A description of the files or dataset, detailed enough to detect a change."""


@dataclass(frozen=True)
class TextFiles:
    """Two text files with the same number of lines, plain, .gz or .xz; without `target`, source text only."""

    source: Path | str
    target: Path | str | None = None

    @property
    def source_only(self) -> bool:
        return self.target is None

    def __iter__(self) -> Iterator[Pair]:
        sources = read_lines(self.source)
        if self.target is None:
            for number, line in enumerate(sources, 1):
                yield Pair(line, None, number)
            return
        targets = read_lines(self.target)
        for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
            if source is None or target is None:
                shorter, longer = number - 1, number + sum(1 for _ in (sources if target is None else targets))
                counts = (longer, shorter) if target is None else (shorter, longer)
                raise CorpusError(
                    f"{self.source} has {counts[0]} lines but {self.target} has {counts[1]}: "
                    "line n of one must be the translation of line n of the other"
                )
            yield Pair(source, target, number)

    def inputs(self) -> list[dict[str, Any]]:
        return [file_stamp(path) for path in (self.source, self.target) if path is not None]


@dataclass(frozen=True)
class TsvFile:
    """One file with the same number of tab-separated columns in every line; `source` and `target` count from 0."""

    path: Path | str
    source: int = 0
    target: int | None = 1

    def __post_init__(self) -> None:
        if self.source < 0 or (self.target is not None and self.target < 0):
            raise ValueError(f"columns are counted from 0, got source={self.source}, target={self.target}")

    @property
    def source_only(self) -> bool:
        return self.target is None

    def __iter__(self) -> Iterator[Pair]:
        needed = max(self.source, self.target or 0) + 1
        expected: int | None = None
        for number, line in enumerate(read_lines(self.path), 1):
            if not line.strip():
                yield _blank(self, number)
                continue
            columns = line.split("\t")
            if len(columns) < needed or len(columns) != (expected or len(columns)):
                wanted = f"{expected} as in the lines before" if expected else f"at least {needed}"
                raise CorpusError(
                    f"{self.path}, line {number}: {len(columns)} tab-separated columns, expected {wanted}"
                )
            expected = len(columns)
            yield Pair(columns[self.source], None if self.target is None else columns[self.target], number)

    def inputs(self) -> list[dict[str, Any]]:
        return [file_stamp(self.path) | {"source": self.source, "target": self.target}]


@dataclass(frozen=True)
class JsonlFile:
    """One JSON object per line; fields are names or dotted paths such as `translation.en`."""

    path: Path | str
    source: str = "source"
    target: str | None = "target"

    @property
    def source_only(self) -> bool:
        return self.target is None

    def __iter__(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), 1):
            if not line.strip():
                yield _blank(self, number)
                continue
            location = f"{self.path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{location}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise CorpusError(f"{location}: expected a JSON object, got {type(row).__name__}")
            target = None if self.target is None else _field(row, self.target, location)
            yield Pair(_field(row, self.source, location), target, number)

    def inputs(self) -> list[dict[str, Any]]:
        return [file_stamp(self.path) | {"source": self.source, "target": self.target}]


@dataclass(frozen=True)
class HubDataset:
    """A Hugging Face dataset: a name on the hub, a folder written by save_to_disk, or a folder of data files.

    Fields are names or dotted paths such as `translation.en`. A folder that save_to_disk wrote from a single split is
    read completely, and `split` is ignored.
    """

    name: str
    source: str
    target: str | None
    split: str = "train"
    config: str | None = None

    @property
    def source_only(self) -> bool:
        return self.target is None

    def __iter__(self) -> Iterator[Pair]:
        for number, row in enumerate(self._load(), 1):
            location = f"{self.name} ({self.split}), row {number}"
            target = None if self.target is None else _field(row, self.target, location)
            yield Pair(_field(row, self.source, location), target, number)

    def inputs(self) -> list[dict[str, Any]]:
        what = {"config": self.config, "split": self.split, "source": self.source, "target": self.target}
        folder = Path(self.name)
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            return [what, *(file_stamp(path) for path in files)]
        dataset = self._load()
        return [what | {"name": self.name, "rows": len(dataset), "fingerprint": dataset._fingerprint}]

    def _load(self) -> Any:
        with needed_for(f"reading {self.name!r}"):
            import datasets
        saved = any((Path(self.name) / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
        try:
            if saved:
                dataset = datasets.load_from_disk(self.name)
            else:
                dataset = datasets.load_dataset(self.name, self.config, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise CorpusError(f"cannot load the dataset {self.name!r}, split {self.split!r}: {error}") from error
        if isinstance(dataset, datasets.DatasetDict):
            if self.split not in dataset:
                raise CorpusError(f"{self.name} has no split {self.split!r}, only {', '.join(dataset)}")
            dataset = dataset[self.split]
        if len(dataset) == 0:
            raise CorpusError(f"{self.name}: split {self.split!r} is empty")
        return dataset


def read_lines(path: Path | str) -> Iterator[str]:
    """The lines of a UTF-8 file (.gz and .xz are unpacked), without line ends.

    Only a line feed ends a line: other Unicode separators may occur inside a sentence, and splitting at them would
    misalign the two sides.
    """
    offset = number = 0
    for number, raw in enumerate(_raw_lines(Path(path)), 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            unpacked = " of the unpacked text" if is_packed(Path(path)) else ""
            raise CorpusError(
                f"{path}, line {number}: not valid UTF-8 at byte {offset + error.start}{unpacked} ({error.reason})"
            ) from error
        offset += len(raw)
        yield (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")
    if number == 0:
        raise CorpusError(f"{path}: the file is empty")


def one_line(text: str) -> str:
    """A text as one line of a file: its line breaks become spaces, and nothing else changes."""
    return re.sub(r"[\r\n]+", " ", text)


def file_stamp(path: Path | str) -> dict[str, Any]:
    """Path, size and SHA-256 of a file.

    Modification times are ignored: copying and unpacking change them, and hashing costs far less than tokenizing.
    """
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            size = file.tell()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    return {"path": str(path), "size": size, "sha256": digest.hexdigest()}


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise CorpusError(f"{path}: damaged or not a {path.suffix} file ({error})") from error
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror or error}") from error


def open_file(path: Path) -> IO[bytes] | gzip.GzipFile | lzma.LZMAFile:
    """Open a file for reading bytes; .gz and .xz files are unpacked, and an empty one, which is neither, is refused."""
    if is_packed(path) and path.is_file() and path.stat().st_size == 0:
        raise CorpusError(f"{path}: the file is empty, not a {path.suffix.lower()} file; was it copied completely?")
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case _:
            return path.open("rb")


def is_packed(path: Path) -> bool:
    """Whether a file's name says that it is compressed."""
    return path.suffix.lower() in (".gz", ".xz")


def _blank(text: ParallelText, number: int) -> Pair:
    return Pair("", None if text.source_only else "", number)


def _field(row: Mapping[str, Any], field: str, location: str) -> str:
    """The text under a field name or dotted path."""
    value: Any = row
    for key in [field] if field in row else field.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise CorpusError(f"{location}: no field {field!r}; available: {', '.join(map(str, row))}")
        value = value[key]
    if not isinstance(value, str):
        raise CorpusError(f"{location}: field {field!r} holds {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can encode half of a surrogate pair, which is not a character
        raise CorpusError(
            f"{location}: field {field!r} has half of a surrogate pair at character {error.start}"
        ) from error
    return value
