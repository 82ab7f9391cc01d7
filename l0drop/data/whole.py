"""Files and folders that get their final name only when they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time write `folder`; others wait here. The lock of a killed process is released."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_temporary(folder, "lock")):
        yield


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `folder` if the block ends without an error.

    Call it under `locked`: it removes the temporary folders of killed processes.
    """
    partial, old = _temporary(folder, "partial"), _temporary(folder, "old")
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
        os.replace(folder, old)  # a folder that is not empty cannot be replaced in one step
    os.replace(partial, folder)
    if old.exists():
        shutil.rmtree(old)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name and rename it when it is complete; text is written as UTF-8."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = _temporary(file, "partial")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _temporary(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")
