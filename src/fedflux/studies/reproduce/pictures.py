"""Figures that show rather than measure: images of clients under shifts, and descriptors in a plane."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources import load
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation
from fedflux.runs.storage.folder import DESCRIPTOR_FILE
from fedflux.runs.storage.samples import sample_images
from fedflux.studies.paper.reading import SHIFTS
from fedflux.studies.paper.study import Place, Study
from fedflux.studies.report.colours import palette
from fedflux.studies.report.descriptor_map import descriptor_map
from fedflux.studies.report.exports import MARKERS
from fedflux.studies.report.folders import read_arrays
from fedflux.studies.reproduce.asking import ask
from fedflux.studies.reproduce.drawing import save

CLIENTS = 2
IMAGES = 8


def draw_samples(study: Study, machine: Mapping[str, Any], stem: Path) -> list[Path]:
    """A row a client, two clients a shift: images as they train on them, with their labels."""
    from matplotlib.figure import Figure

    name, folder = study.places[0].runs.dataset, machine.get("data_dir")
    dataset = load(name, Path(folder) if folder else None)
    down = CLIENTS * len(study.places)
    figure = Figure(figsize=(1.6 + 0.75 * IMAGES, 0.3 + 0.95 * down), layout="constrained")
    for place, one in enumerate(study.places):
        shift, level = one.runs.grid[0]
        asked = {name: value for name, value in ask(one.runs, shift, level, study.seeds[0]).items() if name != "rounds"}
        federation, _ = build_federation(make_config({**machine, **asked}), dataset)
        images = sample_images(federation, np.arange(len(federation)))
        for line, client in enumerate(_unlike(federation.truth)):
            chosen = np.flatnonzero(images["client"] == client)[:IMAGES]
            for across, row in enumerate(chosen):
                axes = figure.add_subplot(down, IMAGES, (CLIENTS * place + line) * IMAGES + across + 1)
                picture = images["image"][row]
                axes.imshow(picture[..., 0] if picture.shape[-1] == 1 else picture, cmap="gray")
                axes.set_xticks([])
                axes.set_yticks([])
                axes.set_title(str(images["label"][row]), fontsize=7, pad=2)
                if across == 0:
                    axes.set_ylabel(f"{SHIFTS[shift]}\nclient {client}", fontsize=7)
    return save(figure, study, stem)


def _unlike(truth: NDArray[np.int64] | None) -> tuple[int, int]:
    """The first client, and the first of another distribution."""
    others = np.flatnonzero(truth != truth[0]) if truth is not None else np.array([1])
    return 0, int(others[0]) if len(others) else 1


def draw_maps(study: Study, folders: Mapping[Place, Path | None], stem: Path) -> list[Path]:
    """A panel a run: clients by descriptor, coloured by the cluster found, shaped by the true one."""
    from matplotlib.figure import Figure

    across = min(3, len(study.places))
    down = -(-len(study.places) // across)
    figure = Figure(figsize=(2.8 * across, 2.6 * down), layout="constrained")
    for number, place in enumerate(study.places):
        axes = figure.add_subplot(down, across, number + 1)
        axes.set_title(place.panel, loc="left", fontsize=9)
        folder = folders.get(place)
        found = descriptor_map(None if folder is None else read_arrays(folder / DESCRIPTOR_FILE))
        if found is None:
            axes.text(0.5, 0.5, "no descriptors here", ha="center", va="center", fontsize=8, transform=axes.transAxes)
            continue
        colours = palette(max(found["found"]) + 1)
        truth = found["truth"] or [0] * len(found["x"])
        for x, y, cluster, true in zip(found["x"], found["y"], found["found"], truth, strict=True):
            axes.plot(x, y, MARKERS[true % len(MARKERS)], color=colours[cluster], ms=6, alpha=0.85)
    return save(figure, study, stem)
