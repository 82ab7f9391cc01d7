"""Run the fuzzer for a number of seconds, or repeat one of its findings."""

import argparse
import json
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.findings import SECONDS, limit_memory, signature, time_limit

TARGETS = ("arguments", "files", "weights", "text", "engine")
CASES = 25
"""Cases of one round. A round has its own seed, and depends on nothing before it."""
SHRINKING = 30
"""Seconds in which a finding is made smaller."""


class Round:
    """Cases from one seed until the first finding that is not known yet."""

    def __init__(self, check: Callable[[Any], None], known: set[str], end: float, current: Path) -> None:
        self.check, self.known, self.end, self.current = check, known, end, current
        self.cases = 0
        self.smallest: str | None = None
        self.found: str | None = None

    def case(self, case: Any) -> None:
        """Check one case; raises for a finding."""
        written = json.dumps(case)
        if time.monotonic() > self.end and written != self.smallest:
            return
        self.cases += 1
        self.current.write_text(written)
        try:
            with time_limit():
                self.check(json.loads(written))
        except (Exception, pytest.fail.Exception) as error:
            found = signature(error)
            if found in self.known or self.found not in (None, found):
                return
            if self.found is None:
                self.end = time.monotonic() + SHRINKING
            self.found, self.smallest = found, written
            raise


def fuzz(target: str, stage: Any, rounds: str, seconds: float, kept: Path, log: Any) -> None:
    """Run rounds of one target and send what was found; `rounds` is a seed, or the one round SEED.NUMBER."""
    limit_memory()
    module = import_module(f"tests.fuzz.{target}")
    current, cases = stage.folder.with_name(f"{target}.json"), 0
    known: set[str] = set()
    end = time.monotonic() + seconds
    start, dot, only = rounds.partition(".")

    def check(case: Any) -> None:
        try:
            module.check(case, stage)
        finally:
            stage.restore()

    for number in [int(only)] if dot else count():
        one = Round(check, known, end, current)
        strategy = settings(
            max_examples=CASES, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False,
        )  # fmt: skip
        try:
            seed(f"{target} {start} {number}")(strategy(given(module.cases())(one.case)))()
        except (Exception, pytest.fail.Exception):
            if one.smallest is None:
                raise
        cases += one.cases
        if one.smallest is not None and one.found is not None:
            known.add(one.found)
            log.put(("found", target, keep(kept, target, f"{start}.{number}", one.found, one.smallest)))
        if time.monotonic() > end:
            break
    log.put(("done", target, f"{cases} cases"))


def keep(folder: Path, target: str, rounds: str, found: str, case: str) -> str:
    """Write the smallest case of a finding; returns what to print."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{target}-{rounds}.json"
    file.write_text(json.dumps({"target": target, "seed": rounds, "found": found, "case": json.loads(case)}, indent=1))
    return f"{found}\n  python -m tests.fuzz --repeat {file}\n  make fuzz TARGET={target} SEED={rounds}"


def repeat(file: Path) -> None:
    """Check one kept case; raises if it is still a finding."""
    from tests.fuzz.stage import Stage

    kept = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(_made(Path(folder) / "stage"))
        limit_memory()
        print(json.dumps(kept["case"], indent=1))
        with time_limit():
            import_module(f"tests.fuzz.{kept['target']}").check(kept["case"], stage)
    print("no finding any more")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def run(targets: list[str], rounds: str, seconds: float, kept: Path) -> int:
    """Run every target in its own process, one after the other; returns the number of findings."""
    from tests.fuzz.stage import Stage

    forks = multiprocessing.get_context("fork")
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        stage = Stage(_made(Path(folder) / "stage"))
        print(f"seed {rounds}; models and runs made in {time.monotonic() - began:.0f} s", flush=True)
        for target in targets:
            log = forks.SimpleQueue()
            process = forks.Process(target=fuzz, args=(target, stage, rounds, seconds / len(targets), kept, log))
            process.start()
            process.join(seconds / len(targets) + 2 * (SECONDS + SHRINKING))
            if process.exitcode is None:
                process.kill()
                process.join()
            if process.exitcode:
                findings += 1
                state = stage.folder.with_name(f"{target}.json")
                case = state.read_text() if state.exists() else "null"
                ended = f"the process ended or hung: exit code {process.exitcode}"
                print(f"FOUND {target}: {keep(kept, target, rounds, ended, case)}", flush=True)
            while not log.empty():
                kind, name, message = log.get()
                findings += kind == "found"
                print(f"{'FOUND ' if kind == 'found' else ''}{name}: {message}", flush=True)
            stage.restore()
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together (default: 600)")
    parser.add_argument("--seed", default="", help="a number, or the round SEED.NUMBER of a finding (default: random)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="folder for findings")
    parser.add_argument("--repeat", type=Path, help="check a kept finding again")
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # an unknown model name is looked up nowhere
    if given.repeat is not None:
        repeat(given.repeat)
        return
    rounds = given.seed or str(secrets.randbelow(10**6))
    findings = run(given.target or list(TARGETS), rounds, given.seconds, given.keep.absolute())
    print(f"{findings} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
