"""Files and folders that stand under their final name only once they are whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing `folder`; they wait here, and the lock of a killed process is free."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_beside(folder, "lock")):
        yield


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside `folder` that takes its place when the block ends without an error.

    Call it under `locked`: what a killed run left beside `folder` is removed here.
    """
    partial, old = _beside(folder, "partial"), _beside(folder, "old")
    for leftover in (partial, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        os.replace(folder, old)  # a folder with files in it cannot be replaced in one go
    os.replace(partial, folder)
    if old.exists():
        shutil.rmtree(old)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name and rename it when it is complete; text is written as UTF-8."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(file, "partial")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")
