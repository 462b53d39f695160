"""Cluster a run's saved descriptors again, with any clusterer, without training anything."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering import ALPHA, Clusterer, find_clusters
from fedflux.clustering.why import Vocabulary, explain
from fedflux.descriptors.wire import from_arrays
from fedflux.errors import FedfluxError
from fedflux.files import jsonable, read_object
from fedflux.runs.scores import cluster_scores
from fedflux.runs.storage.digests import check_files
from fedflux.runs.storage.folder import DESCRIPTOR_FILE, RESULT_FILE, read_config


def recluster(
    run: Path, clusterer: str, clusters: int | str | None, eps_scale: float = 1.0, significance: float = ALPHA
) -> dict[str, Any]:
    """Labels and scores of a clusterer on the descriptors in a run folder (or in the .npz file itself)."""
    arrays = _load(run)
    descriptors = from_arrays(arrays)
    truth = arrays.get("truth")
    if not (isfinite(eps_scale) and eps_scale > 0):
        raise FedfluxError(f"--eps-scale {eps_scale}: give a value above 0")
    if not 0 < significance < 1:
        raise FedfluxError(f"--significance {significance} is outside 0 to 1")
    count = _count(run, clusters, truth)
    found = find_clusters(descriptors, Clusterer(clusterer, count, eps_scale, significance))
    told = read_object((run if run.is_dir() else run.parent) / RESULT_FILE) or {}
    answer: dict[str, Any] = jsonable(
        {
            "clusterer": clusterer,
            "clients": arrays.get("clients", np.arange(len(descriptors))),
            "labels": found.labels,
            **cluster_scores(found.labels, truth),
            "client_names": told.get("client_names"),
            "why": [
                asdict(pair)
                for pair in explain(found.pool, significance, variation=found.variation, vocabulary=_vocabulary(told))
            ],
        }
    )
    return answer


def _vocabulary(told: Mapping[str, Any]) -> Vocabulary:
    """As the run calls its classes."""
    names = told.get("class_names")
    return Vocabulary(tuple(map(str, names)) if isinstance(names, list) else None, told.get("holds_images") is True)


def _count(run: Path, clusters: int | str | None, truth: NDArray[np.int64] | None) -> int | None:
    if clusters is None or isinstance(clusters, int):
        return clusters
    if clusters == "true":
        if truth is None:
            raise FedfluxError(f"{run}: these clients have no true clusters; give --clusters M")
        return len(np.unique(truth))
    try:
        return int(clusters)
    except ValueError:
        raise FedfluxError(f"--clusters '{clusters}' does not fit: give a whole number or true") from None


def _load(run: Path) -> dict[str, Any]:
    path = run if run.is_file() else run / DESCRIPTOR_FILE
    if not run.exists():
        raise FedfluxError(f"{run} does not exist: give the folder of a run")
    if not path.exists():
        raise FedfluxError(f"{run} holds no {DESCRIPTOR_FILE}: only runs that cluster (flux, …) save descriptors")
    if read_config(path.parent) is not None:
        check_files(path.parent, [path.name, RESULT_FILE])
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds a single array")
        with archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, BadZipFile, EOFError, zlib.error) as error:
        raise FedfluxError(f"{path} is not a readable .npz file: {error}") from error
