"""Provenance, to reproduce a number: software versions, commit, device, threads."""

import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from l0drop import __version__

SOURCE = Path(__file__).resolve().parents[2]
"""The source tree, or the folder of installed packages."""


@dataclass(frozen=True)
class Provenance:
    """Recorded next to every number that is written to a file or a table; older files lack some of it."""

    l0drop: str | None = None
    commit: str | None = None
    python: str | None = None
    torch: str | None = None
    transformers: str | None = None
    device: str | None = None
    threads: int | None = None

    @property
    def machine(self) -> str:
        """The device and the threads, in words."""
        return f"{self.device}, {self.threads} thread{'s' if self.threads != 1 else ''}"


def provenance(device: str | torch.device = "cpu") -> Provenance:
    """The provenance of what this process computes on a device."""
    return Provenance(
        l0drop=__version__,
        commit=commit(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=version("transformers"),
        device=_device_name(torch.device(device)),
        threads=torch.get_num_threads(),
    )


def commit() -> str | None:
    """The commit of the source tree, with a + if files were changed; None for an installed package."""
    if not (SOURCE / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(SOURCE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    head = git("rev-parse", "--short", "HEAD").strip()
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no").strip() else "") if head else None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        names = {
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        }
    except OSError:
        names = set()
    return ", ".join(sorted(names)) or platform.processor() or platform.machine()
