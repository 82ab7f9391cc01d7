"""Tokenized corpora as memory maps, read with numpy alone.

A corpus is a folder that `l0drop.data.prepare` writes:

    source.ids  source.offsets     token ids of all sentences end to end; sentence i is ids[offsets[i]:offsets[i + 1]]
    target.ids  target.offsets     the same for the target; absent from a source-only corpus
    hints.NAME                     one integer per source token, for gates that need more than ids
    manifest.json                  inputs, settings, counts of skipped and truncated lines, and digests of all of this
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from l0drop.data.text import CorpusError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass
class Summary:
    """How many lines of a text were used, skipped and truncated.

    `blank` lines are empty on all sides, `one_sided` lines on one of two. All others became a pair; if documents were
    joined, several lines share a pair.
    """

    lines: int = 0
    pairs: int = 0
    blank: int = 0
    one_sided: int = 0
    truncated_source: int = 0
    truncated_target: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """One pair of a corpus: token ids, and hints aligned with the source."""

    source: np.ndarray
    target: np.ndarray | None
    hints: dict[str, np.ndarray]
    index: int


@dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """A prepared corpus on disk; `corpus[i]` reads one example. Processes share its memory pages."""

    folder: Path
    manifest: Mapping[str, Any] = field(repr=False)
    source_lengths: np.ndarray = field(repr=False)
    target_lengths: np.ndarray | None = field(repr=False)
    _columns: Mapping[str, np.ndarray] = field(repr=False)

    @classmethod
    def open(cls, folder: Path | str) -> "TokenizedCorpus":
        """Map a prepared folder; CorpusError if it is incomplete, was changed or has another format."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if "source.offsets" not in manifest["columns"]:
            raise CorpusError(f"{folder}: holds audio, not text")
        columns = {name: map_column(folder / name, layout) for name, layout in manifest["columns"].items()}
        targets = columns.get("target.offsets")
        return cls(
            folder=folder,
            manifest=manifest,
            source_lengths=np.diff(columns["source.offsets"]),
            target_lengths=None if targets is None else np.diff(targets),
            _columns=columns,
        )

    @property
    def summary(self) -> Summary:
        return Summary(**self.manifest["summary"])

    @property
    def made_from(self) -> str:
        """A digest of the text and of the settings it was prepared with; file paths do not count."""
        return request_digest(self.manifest)

    @property
    def hint_names(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("hints.") for name in self._columns if name.startswith("hints."))

    def check(self) -> None:
        """Raise CorpusError if a file is not the one that was written; it reads all of them."""
        check_columns(self.folder, self.manifest)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __getitem__(self, index: int) -> Example:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of a corpus of {len(self)}")
        index = int(index) % len(self)
        return Example(
            source=self._read("source.ids", "source.offsets", index),
            target=None if self.target_lengths is None else self._read("target.ids", "target.offsets", index),
            hints={name: self._read(f"hints.{name}", "source.offsets", index) for name in self.hint_names},
            index=index,
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Callable[[Path], "TokenizedCorpus"], tuple[Path]]:
        return TokenizedCorpus.open, (self.folder,)  # memory maps would be pickled as full copies

    def _read(self, column: str, offsets: str, index: int) -> np.ndarray:
        start, end = self._columns[offsets][index : index + 2]
        return self._columns[column][start:end].astype(np.int64)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared corpus; CorpusError if it is missing, was changed or has another format."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorpusError(f"{folder} is not a prepared corpus: {MANIFEST} cannot be read ({error})") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise CorpusError(f"{path}: format {found}, but this version reads format {FORMAT}; prepare the corpus again")
    for name in ("request", "summary", "columns"):
        if not isinstance(manifest.get(name), dict):
            raise CorpusError(f"{path}: {name}: expected an object; prepare the corpus again")
    if manifest.get("sha256", digest := manifest_digest(manifest)) != digest:
        raise CorpusError(f"{path}: was changed after it was written; prepare the corpus again")
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without this digest itself."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def request_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's request without the paths of its files."""
    return hashlib.sha256(json.dumps(without_paths(manifest["request"]), sort_keys=True).encode()).hexdigest()


def without_paths(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request without the paths of its files, which may move."""
    inputs = [{key: value for key, value in item.items() if key != "path"} for item in request["inputs"]]
    return {**request, "inputs": inputs}


class Prepared(Protocol):
    """A prepared corpus of any kind."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    def check(self) -> None: ...


def is_made_from(open_corpus: Callable[[Path], Prepared], folder: Path, request: Mapping[str, Any]) -> bool:
    """Whether the folder holds an unchanged corpus of an equal request; the paths of its files may differ."""
    try:
        corpus = open_corpus(folder)
        corpus.check()
    except CorpusError:
        return False
    return without_paths(corpus.manifest["request"]) == without_paths(request)


def write_manifest(
    folder: Path, request: Mapping[str, Any], summary: Summary, columns: Mapping[str, tuple[str, int]]
) -> None:
    """Write the manifest of the columns in a folder: the dtype and length of each by its name."""
    written = {
        name: {"dtype": dtype, "length": length, "sha256": file_digest(folder / name)}
        for name, (dtype, length) in columns.items()
    }
    manifest = {"format": FORMAT, "request": request, "summary": asdict(summary), "columns": written}
    manifest["sha256"] = manifest_digest(json.loads(json.dumps(manifest)))
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_columns(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise CorpusError if a file of a corpus is not the one that was written; it reads all of them."""
    for name, layout in manifest["columns"].items():
        if layout.get("sha256", digest := file_digest(folder / name)) != digest:
            raise CorpusError(f"{folder / name}: was changed after it was written; prepare the corpus again")


def file_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def map_column(path: Path, layout: Mapping[str, Any]) -> np.ndarray:
    """The numbers of one file as a memory map."""
    dtype, length = np.dtype(layout["dtype"]), layout["length"]
    size = path.stat().st_size if path.is_file() else 0
    if size != length * dtype.itemsize:
        raise CorpusError(
            f"{path} has {size} bytes, but the manifest says {length * dtype.itemsize}: prepare the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))
