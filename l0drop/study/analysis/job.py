"""One analysis from a folder to its files: of a run, or of a sweep and one of its points in full."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from l0drop.decoding.folder import locate_model
from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.run import RunFolder
from l0drop.runs.sweep import SweepFolder
from l0drop.study.analysis.parts import Bar, Say, analyze, analyze_sweep, no_bar, typical_point, write_parts
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.shown import shown_point


@dataclass(frozen=True)
class AnalysisJob:
    """What to measure, on which text.

    baseline: the dense model to compare with (default: the start of fine-tuning). entmax: a run with sparse attention.
    only: the parts to measure (default: all). show: sentences to draw attention maps of. output: the folder to write
    (default: the run's). brief: of a sweep, analyse no point in full. zero_row: measure the attention mass of a model
    of gating `mask` also with a zero row, as in Figure 6.
    """

    reading: Reading
    baseline: str | None = None
    entmax: str | None = None
    only: Sequence[str] = ()
    show: Sequence[int] = ()
    output: Path | None = None
    brief: bool = False
    zero_row: bool = False

    def run(self, folder: str, bar: Bar = no_bar, say: Say = print) -> Iterator[tuple[Analysis | SweepAnalysis, Path]]:
        """Analyse a run, a model or a sweep; yields each analysis with its folder once it is written."""
        sweep = SweepFolder(Path(folder))
        if sweep.is_sweep:
            yield from self._sweep(sweep, bar, say)
            return
        target = self.output or locate_model(folder)[1] or Path(folder)
        if not target.is_dir() and self.output is None:
            raise ValueError(f"`output`: {folder} is not a folder here; name one for analysis.json and figures")
        with opened(folder, self.reading, baseline=self.baseline, entmax=self.entmax) as subject:
            result = analyze(subject, self.only, self.show, bar, self.zero_row)
        if self.only:
            write_parts(result, RunFolder(target).analysis)
        else:
            result.write(RunFolder(target).analysis)
        yield result, target

    def _sweep(self, sweep: SweepFolder, bar: Bar, say: Say) -> Iterator[tuple[Analysis | SweepAnalysis, Path]]:
        if self.only or self.show or self.entmax or self.zero_row:
            raise ValueError(f"`only`, `show`, `entmax`, `zero_row`: are for single runs, and {sweep.path} is a sweep")
        result = analyze_sweep(sweep.path, self.reading, self.baseline, bar, say)
        target = self.output or sweep.path
        result.write(SweepFolder(target).analysis)
        yield result, target
        if self.brief:
            return
        point = sweep.path / (shown_point(sweep.path) or typical_point(result))
        say(f"all parts of {point}, for the report (l0drop analyze RUN for other points)")
        with opened(str(point), self.reading, baseline=self.baseline) as subject:
            in_full = analyze(subject, bar=bar)
        target = point if self.output is None else self.output / point.name
        in_full.write(RunFolder(target).analysis)
        yield in_full, target
