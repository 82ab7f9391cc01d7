"""Figures as SVG, from the JSON files of sweeps, analyses and benchmarks alone: files in, files out.

Text and axes have the colour of the page they are put into (`currentColor`), the background is transparent, and the
colours of data stand off from white and from black alike, so the same file serves light pages, dark pages and print.
Colours are told apart by the colour-blind, and shapes or dashes say the same again.
"""

from l0drop.report.figures.attention import attention_maps, attention_mass, entropy
from l0drop.report.figures.distribution import density
from l0drop.report.figures.drawing import Drawing
from l0drop.report.figures.files import draw_all
from l0drop.report.figures.scores import quality, quality_and_time, seeds_and_sparsity
from l0drop.report.figures.times import speed
from l0drop.report.figures.words import groups, places

__all__ = [
    "Drawing",
    "attention_maps",
    "attention_mass",
    "density",
    "draw_all",
    "entropy",
    "groups",
    "places",
    "quality",
    "quality_and_time",
    "seeds_and_sparsity",
    "speed",
]
