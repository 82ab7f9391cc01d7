"""Findings: what the fuzzer looks for, and the limits on time and memory of one case."""

import re
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60
"""A case that takes longer is a finding: every case is tiny."""
MEMORY = 8 << 30
"""Bytes of address space that a case may add."""


class FoundError(AssertionError):
    """A wrong answer: a changed input, a wrong line count, a score that is not finite, a difference to the twin."""


class HangError(AssertionError):
    """A case that ran for too long."""


def require(fine: bool, message: str) -> None:
    if not fine:
        raise FoundError(message)


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise HangError in the main thread after SECONDS."""

    def stop(*_: Any) -> None:
        raise HangError(f"no end after {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory() -> None:
    """For this process and for good: absurd sizes fail, and do not take the machine with them."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def signature(error: BaseException) -> str:
    """Type, place and message without numbers: equal for two cases of the same defect."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/l0drop/" in frame.filename.rpartition("site-packages")[2]]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "-"
    message = re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "_", str(error).partition("\n")[0])[:80]
    return f"{type(error).__name__} in {place}: {message}"
