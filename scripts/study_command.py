"""The command line that all studies share. Their scripts declare the study and add their own options."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from l0drop.models.quiet import quiet_libraries
from l0drop.runs.study import StudyResults
from l0drop.runs.table import Table, in_markdown
from l0drop.study.distillation import WAYS, way_named
from l0drop.study.parallel import RunError
from l0drop.study.seeds import ON
from l0drop.study.study import Options, Study, UnknownSystemError


def parser_of(study: type[Study], about: str | None, runs: Path, ways: int | str = 1) -> argparse.ArgumentParser:
    """The options of every study. runs: the default folder. ways: the number of ways that --distil takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=runs)
    if study.parts:
        parser.add_argument("--parts", nargs="*", choices=study.parts, default=study.parts)
    parser.add_argument("--systems", nargs="*", help="train these systems and the runs they need (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1, help="the number of the first seed (default: 1)")
    parser.add_argument("--baselines", type=int, help="number of independent baselines (default: one per seed)")
    parser.add_argument(
        "--distil", nargs=ways, type=way_named, choices=WAYS, default=["both"], help="how gated models are distilled"
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per run")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for runs that start from scratch")
    parser.add_argument(
        "--fine-tune", action="append", default=[], help="a.b=value, for runs that start from a baseline"
    )
    parser.add_argument("--gather", action="store_true", help="train nothing, collect the finished runs")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="print the tables of a results.json")
    return parser


def carry_out(study: type[Study], parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], Study]) -> None:
    """Parse the command line; print the tables of a file, or train the study and gather its results."""
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(in_text(study.tables(StudyResults.read(arguments.tables))))
        return
    if arguments.data is None:
        parser.error("--data: name the folder that holds the text")
    quiet_libraries()
    made = make(arguments)
    try:
        recipes = made.plan()
    except UnknownSystemError as error:
        raise SystemExit(f"--systems: {error}") from None
    failed = None
    if not arguments.gather:
        try:
            made.train(recipes)
        except RunError as error:  # the other runs are finished
            failed = error
    found = made.gather()
    if ON in found.systems:
        made.console.print(in_text(made.tables(found)), highlight=False, markup=False, soft_wrap=True)
    if failed is not None:
        raise SystemExit(str(failed))


def options_of(arguments: argparse.Namespace) -> Options:
    """The options that every study has."""
    return Options(
        data=arguments.data,
        runs=arguments.runs,
        parts=getattr(arguments, "parts", ()),
        systems=arguments.systems or (),
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        baselines=arguments.baselines,
        distil=arguments.distil[0],
        parallel=arguments.parallel,
        threads=arguments.threads,
        every_run=arguments.set,
        baseline=arguments.baseline,
        fine_tune=arguments.fine_tune,
    )


def in_text(tables: Sequence[Table]) -> str:
    """Tables in Markdown, one after the other."""
    return "\n\n".join(map(in_markdown, tables))
