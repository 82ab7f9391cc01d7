"""Figures as SVG, drawn from the JSON files of sweeps, analyses and benchmarks.

Text and axes take the colour of the page (`currentColor`), the background is transparent, and data colours are legible
on white and on black, so one file serves light pages, dark pages and print. The palette is safe for colour-blind
readers, and shapes or dashes repeat the distinction.
"""

from l0drop.report.figures.attention import attention_maps, attention_mass, entropy
from l0drop.report.figures.distribution import density
from l0drop.report.figures.drawing import Drawing
from l0drop.report.figures.files import draw_all
from l0drop.report.figures.scores import difference_curve, quality, quality_and_time, seeds_and_sparsity
from l0drop.report.figures.speech import error_curve, spectrograms
from l0drop.report.figures.times import speed
from l0drop.report.figures.words import groups, positions

__all__ = [
    "Drawing",
    "attention_maps",
    "attention_mass",
    "density",
    "difference_curve",
    "draw_all",
    "entropy",
    "error_curve",
    "groups",
    "positions",
    "quality",
    "quality_and_time",
    "seeds_and_sparsity",
    "spectrograms",
    "speed",
]
