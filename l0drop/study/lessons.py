"""What a gated model learns from: references, or a dense model's distributions, its translations, or both."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from l0drop.data.text import file_stamp, read_lines
from l0drop.data.whole import write_whole
from l0drop.training.assemble import weights_stamp

logger = logging.getLogger(__name__)

WAYS = ("no", "distributions", "text", "both", "mixed")
"""Without a teacher; its distribution over the next token of a reference; its translations instead of references; its
translations and its distributions on them; its distributions on references and translations, as many of each."""
UNTAUGHT = "train.teacher=null"
BEAMS = 4
DTYPE = "bfloat16"
"""In which a GPU translates."""


class Lessons:
    """The training text of a study as one dense run translates it, and the overrides that make a recipe learn from it.

    source, target: the training text. folder: where the translations are put.
    """

    def __init__(self, source: Path, target: Path, folder: Path) -> None:
        self.source, self.target = source, target
        self.translated = folder / "train.translated"
        self.mixed = folder / "train.mixed.source", folder / "train.mixed.target"

    def overrides(self, way: str, teacher: Path) -> list[str]:
        """What to change in a recipe that has a teacher. teacher: the run whose distributions are learnt."""
        if way not in WAYS:
            raise ValueError(f"teaching: expected one of {', '.join(WAYS)}, got {way!r}")
        values = [UNTAUGHT if way in ("no", "text") else f"train.teacher.model={teacher}"]
        if way in ("text", "both"):
            values.append(f"data.train.target={self.translated}")
        if way == "mixed":
            values += [f"data.train.{side}={file}" for side, file in zip(("source", "target"), self.mixed, strict=True)]
        return values

    def write(self, run: Path, ways: Sequence[str], processes: int) -> None:
        """Have a run translate the training text, where one of these ways needs it and it is not there yet."""
        if not {"text", "both", "mixed"} & {*ways}:
            return
        made_from = {"source": file_stamp(self.source)["sha256"], "model": weights_stamp(run), "settings": _settings()}
        written = self.translated.with_name(f"{self.translated.name}.json")
        begun = json.loads(written.read_text(encoding="utf-8")) if written.exists() else None
        if not self.translated.exists():
            if begun is not None and begun != made_from:
                self._begin_anew(sorted(key for key in made_from if begun.get(key) != made_from[key]))
            write_whole(written, json.dumps(made_from, indent=1) + "\n")
            translate(run, self.source, self.translated, processes)
        elif begun is None or any(begun.get(key) != made_from[key] for key in ("source", "model")):
            raise ValueError(
                f"{self.translated}: not known to be what {run} makes of {self.source}, as {written.name} would say; "
                "remove it, and what was taught by it"
            )
        if "mixed" in ways:
            for side, (one, other) in zip(
                self.mixed, ((self.source, self.source), (self.target, self.translated)), strict=True
            ):
                if not side.exists():
                    lines = [*read_lines(one), "", *read_lines(other)]
                    write_whole(side, "".join(f"{line}\n" for line in lines))

    def _begin_anew(self, different: Sequence[str]) -> None:
        """What was translated with other settings, or by another model, is of no use to go on from."""
        parts = [
            self.translated.with_name(f"{self.translated.name}{ending}") for ending in (".partial", ".partial.json")
        ]
        if any(part.exists() for part in parts):
            logger.warning("%s: was begun otherwise (other %s), and is begun anew", parts[0], ", ".join(different))
        for part in parts:
            part.unlink(missing_ok=True)


def translate(run: Path, source: Path, output: Path, processes: int) -> None:
    """`l0drop translate` in several processes on one machine, one line for each; an interrupted one goes on."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launch, "-m", "l0drop", "translate", str(run), "--input", str(source), "--output", str(output)]
    options = ["--resume", "--threads", "1", *_settings()]
    subprocess.run([*command, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _settings() -> list[str]:
    """Options that an interrupted translation must have been begun with."""
    on_gpu = ["--dtype", DTYPE, "--batch-tokens", "8192", "--window", "65536"]
    return ["--beams", str(BEAMS), *(on_gpu if torch.cuda.is_available() else [])]
