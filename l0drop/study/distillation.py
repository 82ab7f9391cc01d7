"""What the gated models of a study are trained on: references, or a dense teacher's distributions, outputs, or both."""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from l0drop.data.text import file_stamp, read_lines
from l0drop.data.whole import write_whole
from l0drop.runs.json_file import JsonFile
from l0drop.training.assemble import weights_stamp

logger = logging.getLogger(__name__)

WAYS = ("no", "token", "sequence", "both", "mixed")
"""no: references alone. token: references, with the teacher's distribution over each next token. sequence: the
teacher's outputs instead of references. both: its outputs, with its distributions on them. mixed: its distributions on
references and on its outputs, half of each."""
EARLIER_NAMES = {"distributions": "token", "text": "sequence"}
"""Names that older options, run folders and result files use."""
NO_TEACHER = "train.teacher=null"
BEAMS = 4
DTYPE = "bfloat16"
"""Data type for decoding on a GPU."""


def way_named(name: str) -> str:
    """The way of this name, which may be an earlier one; ValueError for an unknown name."""
    way = EARLIER_NAMES.get(name, name)
    if way not in WAYS:
        raise ValueError(f"distillation: expected one of {', '.join(WAYS)}, got {name!r}")
    return way


def folder_name(way: str) -> str:
    """The name of a way in run folders, which have kept the earlier names."""
    return {new: old for old, new in EARLIER_NAMES.items()}.get(way, way)


@dataclass(frozen=True)
class TeacherInputs(JsonFile):
    """What a teacher's outputs were made from: hashes of the source text and the weights, and decoding options."""

    COMMAND = "the script of the study"

    source: str
    model: str | None = None
    settings: list[str] | None = None


class Distillation:
    """The teacher's outputs on a study's training text, and the recipe overrides that train on them.

    source, target: the training text. folder: the outputs are written there. name: of the files.
    """

    def __init__(self, source: Path, target: Path, folder: Path, name: str = "train") -> None:
        self.source, self.target = source, target
        self.outputs = folder / f"{name}.translated"
        self.mixed = folder / f"{name}.mixed.source", folder / f"{name}.mixed.target"

    def overrides(self, way: str, teacher: Path) -> list[str]:
        """Overrides for a recipe that has a teacher. teacher: the run that supplies the distributions."""
        way = way_named(way)
        values = [NO_TEACHER if way in ("no", "sequence") else f"train.teacher.model={teacher}"]
        if way in ("sequence", "both"):
            values.append(f"data.train.target={self.outputs}")
        if way == "mixed":
            values += [f"data.train.{side}={file}" for side, file in zip(("source", "target"), self.mixed, strict=True)]
        return values

    def write(self, run: Path, ways: Sequence[str], processes: int) -> None:
        """Decode the training text with a run, if one of these ways needs its outputs and they do not exist yet."""
        names = {way_named(way) for way in ways}
        if not {"sequence", "both", "mixed"} & names:
            return
        made_from = TeacherInputs(file_stamp(self.source)["sha256"], weights_stamp(run), _settings())
        stamp = self.outputs.with_name(f"{self.outputs.name}.json")
        stored = TeacherInputs.read(stamp) if stamp.exists() else None
        if not self.outputs.exists():
            if stored is not None and stored != made_from:
                self._restart(sorted(key for key, value in vars(made_from).items() if getattr(stored, key) != value))
            made_from.write(stamp)
            translate(run, self.source, self.outputs, processes)
        elif stored is None or (stored.source, stored.model) != (made_from.source, made_from.model):
            raise ValueError(
                f"{self.outputs}: {stamp.name} does not say that {run} made it from {self.source}; remove the file and "
                "the runs that were distilled from it"
            )
        if "mixed" in names:
            for side, (one, other) in zip(
                self.mixed, ((self.source, self.source), (self.target, self.outputs)), strict=True
            ):
                if not side.exists():
                    lines = [*read_lines(one), "", *read_lines(other)]
                    write_whole(side, "".join(f"{line}\n" for line in lines))

    def _restart(self, different: Sequence[str]) -> None:
        """Delete partial outputs of another model or other settings, which cannot be continued."""
        parts = [self.outputs.with_name(f"{self.outputs.name}{ending}") for ending in (".partial", ".partial.json")]
        if any(part.exists() for part in parts):
            logger.warning("%s: different %s; decoding starts again", parts[0], ", ".join(different))
        for part in parts:
            part.unlink(missing_ok=True)


def translate(run: Path, source: Path, output: Path, processes: int) -> None:
    """`l0drop translate` in several processes on one machine, one output line per source line; resumes if stopped."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launch, "-m", "l0drop", "translate", str(run), "--input", str(source), "--output", str(output)]
    options = ["--resume", "--threads", "1", *_settings()]
    subprocess.run([*command, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _settings() -> list[str]:
    """Decoding options; a resumed translation must have started with the same ones."""
    on_gpu = ["--dtype", DTYPE, "--batch-tokens", "8192", "--window", "65536"]
    return ["--beams", str(BEAMS), *(on_gpu if torch.cuda.is_available() else [])]
