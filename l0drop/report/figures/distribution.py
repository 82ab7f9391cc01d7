"""Figure 3: the gate's distribution."""

import matplotlib
import numpy as np
import torch

from l0drop.core import hard_concrete
from l0drop.report.figures.drawing import BLUE, RED, STYLE, Drawing, axes_of, rendered


def density(alpha: float = 0.0) -> Drawing:
    """The hard-concrete distribution at one log α: density between 0 and 1, mass at the ends."""
    beta, epsilon = 2 / 3, 0.1
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        s = np.linspace(1e-4, 1 - 1e-4, 2000)
        plain = binary_concrete_density(s, alpha, beta)
        stretched = s * (1 + 2 * epsilon) - epsilon
        thinner = plain / (1 + 2 * epsilon)
        axes.plot(s, plain, color=BLUE, linestyle="--", label="binary concrete")
        axes.plot(stretched, thinner, color=BLUE, label=f"stretched to (-{epsilon:g}, {1 + epsilon:g})")
        inside = (stretched >= 0) & (stretched <= 1)
        axes.plot(stretched[inside], thinner[inside], color=RED, linewidth=2.4, label="hard concrete")
        for outside in (stretched <= 0, stretched >= 1):
            axes.fill_between(stretched[outside], thinner[outside], color=BLUE, alpha=0.25, linewidth=0)
        closed = 1 - float(hard_concrete.open_probability(torch.tensor(alpha), beta, epsilon))
        one = 1 - float(hard_concrete.open_probability(torch.tensor(-alpha), beta, epsilon))
        for end, mass in ((0, closed), (1, one)):
            axes.plot([end, end], [0, mass], color=RED, linewidth=2.4)
            axes.plot([end], [mass], "o", color=RED, markersize=7)
            side = -1 if end == 0 else 1
            axes.annotate(
                f"P(g = {end}) = {mass:.2f}", (end, mass), xytext=(side * 8, 0), textcoords="offset points",
                ha="right" if end == 0 else "left", va="center",
            )  # fmt: skip
        axes.set(xlabel="gate g", ylabel="density, and mass at 0 and 1", xlim=(-0.55, 1.55), ylim=(0, 3))
        axes.legend(loc="upper center")
    caption = (
        f"Hard-concrete distribution at log α = {alpha:g}, β = {beta:.3g}, ε = {epsilon:g}. The mass of the "
        "stretched density below 0 and above 1 (shaded) moves to exactly 0, a closed gate, and exactly 1. Computed, "
        "not measured."
    )
    return rendered("hard-concrete", "Hard-concrete distribution", caption, figure)


def binary_concrete_density(s: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """The density of s = σ((logit u + log α) / β) with u uniform, at log α = `alpha`."""
    logit = beta * (np.log(s) - np.log1p(-s)) - alpha
    uniform = 1 / (1 + np.exp(-logit))
    return beta * uniform * (1 - uniform) / (s * (1 - s))
