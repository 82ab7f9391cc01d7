"""Read a stream of bytes line by line. Only LF or CR LF ends a line."""

import gzip
import hashlib
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from l0drop.data.text import CorpusError, is_packed, open_file

LONGEST = 64 << 20
"""Maximum line length in bytes. A longer line is probably not text, and it could fill the memory."""

Errors = Literal["strict", "replace"]


class Lines:
    """One text per line of `file`, with the number of lines and bytes read and a digest of them.

    With `jsonl` a line is a JSON object with a text under `field`, or a JSON string; texts can contain line breaks. A
    blank line is a blank text. Invalid UTF-8 raises; `errors="replace"` replaces it by U+FFFD.
    """

    def __init__(
        self,
        file: IO[bytes] | gzip.GzipFile | lzma.LZMAFile,
        name: str,
        *,
        jsonl: bool = False,
        field: str = "text",
        errors: Errors = "strict",
    ) -> None:
        self.name, self.number, self.bytes = name, 0, 0
        self._file, self._jsonl, self._field, self._errors = file, jsonl, field, errors
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes read so far."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[str]:
        for raw in self._raw():
            text = self._decoded(raw)
            yield self._text(text) if self._jsonl and text.strip() else text

    def skip(self, lines: int, digest: str) -> None:
        """Skip the lines that an earlier run has read, and check that they are the same."""
        for _, _ in zip(range(lines), self._raw(), strict=False):
            pass
        if lines and (self.number != lines or self.digest != digest):
            raise CorpusError(
                f"{self.name}: the first {lines} lines differ from those that the interrupted run read; give the same "
                "input, or start again with `restart=True`"
            )

    def location(self, number: int) -> str:
        """The name of a line in messages."""
        return f"{self.name}, line {number}"

    def _raw(self) -> Iterator[bytes]:
        try:
            while raw := self._file.readline(LONGEST):
                self.number += 1
                if len(raw) == LONGEST and not raw.endswith(b"\n"):
                    raise CorpusError(f"{self.location(self.number)}: longer than {LONGEST >> 20} MiB; is this text?")
                self.bytes += len(raw)
                self._digest.update(raw)
                yield raw.removesuffix(b"\n").removesuffix(b"\r") if raw.endswith(b"\n") else raw
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise CorpusError(f"{self.name}: damaged after line {self.number} ({error})") from error

    def _decoded(self, raw: bytes) -> str:
        try:
            text = raw.decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{self.location(self.number)}: not valid UTF-8 at byte {error.start} of the line ({error.reason}); "
                'fix it, or use `errors="replace"`'
            ) from error
        return text.removeprefix("\ufeff") if self.number == 1 else text

    def _text(self, line: str) -> str:
        location = self.location(self.number)
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{location}: not JSON ({error})") from error
        if isinstance(value, dict):
            if self._field not in value:
                fields = ", ".join(value) or "no fields"
                raise CorpusError(f"{location}: no field {self._field!r}; found {fields} (choose one with `field`)")
            value = value[self._field]
        if not isinstance(value, str):
            raise CorpusError(f"{location}: expected a text, or an object with a text under {self._field!r}")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON can contain half of a surrogate pair, which is not a character
            if self._errors == "strict":
                raise CorpusError(
                    f"{location}: half of a surrogate pair at character {error.start}; "
                    'fix it, or use `errors="replace"`'
                ) from error
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value


@dataclass(frozen=True)
class TextInput:
    """Texts to read: one per line of a file, where .gz and .xz are decompressed, or of standard input without a file.

    jsonl: read JSON lines, with the text under `field`; None: if the file's name ends in .jsonl. errors: what to do
    with invalid UTF-8.
    """

    file: Path | None = None
    jsonl: bool | None = None
    field: str = "text"
    errors: Errors = "strict"

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that determines the texts, apart from the bytes."""
        jsonl = is_jsonl(self.file) if self.jsonl is None else self.jsonl
        return {"jsonl": jsonl, "field": self.field if jsonl else None, "errors": self.errors}

    @property
    def size(self) -> int | None:
        """The bytes that will be read, if they are known."""
        plain = self.file is not None and self.file.is_file() and not is_packed(self.file)
        return self.file.stat().st_size if self.file is not None and plain else None

    @contextmanager
    def opened(self) -> Iterator[Lines]:
        settings: Any = {"jsonl": self.facts["jsonl"], "field": self.field, "errors": self.errors}
        if self.file is None:
            yield Lines(sys.stdin.buffer, "standard input", **settings)
            return
        if self.file.is_dir():
            raise CorpusError(f"{self.file}: is a folder, not a file of text")
        try:
            file = open_file(self.file)
        except OSError as error:
            raise CorpusError(f"{self.file}: {error.strerror or error}") from error
        with file:
            yield Lines(file, str(self.file), **settings)


def is_jsonl(path: Path | None) -> bool:
    """Whether a file's name ends in .jsonl, possibly before .gz or .xz."""
    return path is not None and ".jsonl" in [suffix.lower() for suffix in path.suffixes[-2:]]
