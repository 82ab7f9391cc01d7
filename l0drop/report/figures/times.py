"""Decoding time, by system."""

import matplotlib

from l0drop.report.figures.drawing import BLUE, GREY, STYLE, Drawing, axes_of, rendered
from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.provenance import Provenance

SYSTEMS = {
    "engine-short": "our engine, short memory",
    "engine-dense": "our engine, dense memory",
    "engine-int8-short": "our engine, int8, short memory",
    "engine-int8-dense": "our engine, int8, dense memory",
    "hf-short": "Hugging Face, short",
    "hf-dense": "Hugging Face, dense",
    "ct2-float32": "CTranslate2, float32",
    "ct2-int8": "CTranslate2, int8",
}


def speed(bench: DecodeBenchmark) -> Drawing:
    """CPU seconds of encoding and decoding by system, from the decoding benchmark."""
    names = timed(bench)[::-1]
    if not names:
        raise ValueError(f"bench.json: none of its systems is one of {', '.join(SYSTEMS)}")
    medians = [bench.systems[name].median for name in names]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of(width=6.2, height=0.36 * len(names) + 1.3)
        encode, decode = ([median[phase].cpu for median in medians] for phase in ("encode", "decode"))
        labels = [SYSTEMS[name] for name in names]
        axes.barh(labels, encode, color=GREY, height=0.68, label="encode")
        axes.barh(labels, decode, left=encode, color=BLUE, height=0.68, label="decode")
        largest = max(a + b for a, b in zip(encode, decode, strict=True))
        for number, (name, a, b) in enumerate(zip(names, encode, decode, strict=True)):
            times = bench.systems[name].times_engine_short
            ratio = f"  ({times['end_to_end']:.2f}×)" if times else ""
            axes.text(a + b + 0.01 * largest, number, f"{a + b:.3g} s{ratio}", va="center", fontsize=8)
        axes.set(xlabel=f"CPU seconds, {bench.sentences} sentences", xlim=(0, 1.25 * largest))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.0), bbox_transform=figure.transFigure, ncols=2)
        axes.set_title(" ", pad=10)
    compared = any(bench.systems[name].times_engine_short for name in names)
    brackets = "; in brackets, end-to-end time relative to our engine on the short memory" if compared else ""
    gates = bench.gates  # None if no gated system was timed
    read = (
        f", {gates.source_tokens:,} source tokens (longest {gates.longest_source:,}), {gates.sparsity:.1%} dropped"
        if gates is not None
        else ""
    )
    what, made_by = bench.workload.what, bench.made_by or Provenance()
    caption = (
        f"CPU time of encoding and decoding, medians over interleaved rounds{brackets}. "
        f"{what[0].upper()}{what[1:]}: {bench.sentences} sentences{read}; {made_by.device}, {made_by.threads} "
        f"thread(s), beam {bench.generation['num_beams']}."
    )
    return rendered("speed", "Decoding time", caption, figure)


def timed(bench: DecodeBenchmark) -> list[str]:
    """The systems of a decoding benchmark that can be drawn."""
    return [name for name in SYSTEMS if name in bench.systems]
