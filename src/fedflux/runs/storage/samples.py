"""A few images of a few clients of every cluster, kept with a run so that a report can show the shift."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Federation
from fedflux.data.sources import PIXELS
from fedflux.data.tasks.kinds import kinds
from fedflux.runs.config import RunConfig

CLIENTS = 24
"""Clients shown at most."""
PER_CLUSTER = 3
"""Clients shown of each cluster, one of every true cluster in it first."""
CLASSES = 10
"""Images of a client, one a class."""


def keeps_samples(config: RunConfig) -> bool:
    """Whether images go into the run's folder: of public datasets unless they are unwanted, of people's own data only
    if they are asked for.
    """
    return config.samples == "keep" or (config.samples == "auto" and config.dataset in PIXELS)


def sample_images(federation: Federation, assignment: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """`client`, `label` (as that client has it) and `image` (uint8, height × width × 1 or 3), one row an image."""
    owners: list[int] = []
    labels: list[int] = []
    images: list[NDArray[np.uint8]] = []
    for client in _shown(assignment, federation.truth):
        data = federation.materialise(client, "train")
        y = kinds(data.y.numpy())
        classes, first = np.unique(y, return_index=True)
        for label, row in list(zip(classes.tolist(), first.tolist(), strict=True))[:CLASSES]:
            owners.append(client)
            labels.append(label)
            images.append(_picture(data.x[row].numpy()))
    channels, height, width = federation.input_shape
    empty = np.zeros((0, height, width, 3 if channels == 3 else 1), dtype=np.uint8)
    return {
        "client": np.array(owners, dtype=np.int64),
        "label": np.array(labels, dtype=np.int64),
        "image": np.stack(images) if images else empty,
    }


def _shown(assignment: NDArray[np.int64], truth: NDArray[np.int64] | None) -> list[int]:
    """Members of every found cluster, spread over the true clusters inside it; large federations show fewer of each."""
    clusters = np.unique(assignment)
    share = min(PER_CLUSTER, max(1, CLIENTS // len(clusters))) if len(clusters) > 1 else CLIENTS // 2
    chosen: list[int] = []
    for cluster in clusters[:CLIENTS]:
        members = np.flatnonzero(assignment == cluster)
        kinds = np.zeros(len(members), dtype=np.int64) if truth is None else truth[members]
        firsts = members[np.unique(kinds, return_index=True)[1]]
        chosen += sorted(np.concatenate([firsts, np.setdiff1d(members, firsts)])[:share].tolist())
    return chosen


def _picture(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Channels last, 0 to 255; images of two or more than three channels are shown as their mean."""
    if len(x) not in (1, 3):
        x = x.mean(axis=0, keepdims=True)
    if x.dtype != np.uint8:
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 1.0)
        x = np.round(255 * (x - low) / (high - low))
    return np.ascontiguousarray(x.transpose(1, 2, 0)).astype(np.uint8)
