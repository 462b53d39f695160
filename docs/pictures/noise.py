"""Privacy: how much noise a class mean carries, by the ε that is spent and by how many records it is of."""

from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, GRID, INK, WARM, page, place
from matplotlib.figure import Figure

from fedflux.descriptors.privacy.accounting import Privacy, release_sigma
from fedflux.descriptors.privacy.release import SENSITIVITY

EPSILONS, RECORDS = (0.5, 1, 2, 4, 8, 16), (20, 100, 500, 2500)


def noise(_: Path) -> Figure:
    """The deviation of σ/n for one release, as OpenDP accounts for it; latents have unit length."""
    figure = page(9.6, 3.0)
    axes = place(figure, 0.09, 0.2, 0.58, 0.66)
    sigma = np.array([release_sigma(epsilon, Privacy("gaussian", epsilon).delta, SENSITIVITY) for epsilon in EPSILONS])
    for records, colour in zip(RECORDS, CLUSTERS, strict=False):
        axes.plot(EPSILONS, sigma / records, marker="o", markersize=4, color=colour, label=f"{records:,} of a class")
    axes.axhline(1, color=WARM, linewidth=1, linestyle="--")
    axes.annotate("as long as a latent itself", (EPSILONS[-1], 1), xytext=(0, 4), textcoords="offset points",
                  fontsize=8, ha="right", color=INK)  # fmt: skip
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.set_xlabel("ε that the release spends, δ = 10⁻⁵", fontsize=9)
    axes.set_title("noise on each coordinate of a class mean, standard deviation", fontsize=10, loc="left")
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.02, 1.0), title="records of a client")
    return figure
