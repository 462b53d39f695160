"""Clustering a run's descriptors again."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.making import make_client, run_npz, save_clients

from fedflux.clustering import CLUSTERERS
from fedflux.errors import FedfluxError
from fedflux.studies.recluster import recluster


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose six clients form two clusters by the file's own account."""
    folder = tmp_path_factory.mktemp("recluster")
    clients = [make_client(k, 12, negative=k % 2 == 1, noise=0.02) for k in range(6)]
    data = save_clients(folder / "data.npz", clients, cluster=np.repeat(np.arange(6) % 2, 12))
    return run_npz(data, folder / "run", clusterer="agglomerative")


def test_the_same_clusterer_finds_the_runs_clusters(finished: dict[str, Any]) -> None:
    answer = recluster(Path(finished["run_dir"]), "agglomerative", None)
    assert answer["labels"] == finished["assignment"]
    assert answer["clients"] == list(range(6))
    for key in ("clusters_found", "clusters_true", "ari", "nmi", "pairs_right"):
        assert answer[key] == finished[key]


@pytest.mark.parametrize("clusterer", CLUSTERERS)
def test_every_clusterer_answers_from_folder_or_file(finished: dict[str, Any], clusterer: str) -> None:
    folder = Path(finished["run_dir"])
    answer = recluster(folder, clusterer, "true")
    assert answer == recluster(folder / "descriptors.npz", clusterer, "true")
    assert 1 <= answer["clusters_found"] <= 6


@pytest.mark.parametrize("clusters", ["true", "2", 2])
def test_kmeans_is_told_the_number(finished: dict[str, Any], clusters: str | int) -> None:
    answer = recluster(Path(finished["run_dir"]), "kmeans", clusters)
    assert answer["labels"] == [0, 1, 0, 1, 0, 1]
    assert answer["ari"] == 1.0


@pytest.mark.parametrize(
    ("clusterer", "clusters", "eps_scale", "words"),
    [
        ("kmeans", None, 1.0, "kmeans needs the number of clusters"),
        ("kmeans", "7", 1.0, "7 clusters of 6 clients"),
        ("kmeans", "0", 1.0, "0 clusters"),
        ("kmeans", "-1", 1.0, "-1 clusters"),
        ("kmeans", "many", 1.0, "--clusters 'many' does not fit"),
        ("kmeans", "²", 1.0, "--clusters '²' does not fit"),
        ("k-means", None, 1.0, "did you mean 'kmeans'"),
        ("agglomerative", None, 0.0, "--eps-scale 0"),
        ("agglomerative", None, float("nan"), "--eps-scale nan"),
    ],
)
def test_bad_requests_get_one_line(
    finished: dict[str, Any], clusterer: str, clusters: str | None, eps_scale: float, words: str
) -> None:
    with pytest.raises(FedfluxError, match=words):
        recluster(Path(finished["run_dir"]), clusterer, clusters, eps_scale)


def test_runs_without_truth_or_descriptors(finished: dict[str, Any], tmp_path: Path) -> None:
    with np.load(Path(finished["run_dir"]) / "descriptors.npz") as archive:
        np.savez(tmp_path / "blind.npz", **{key: archive[key] for key in archive.files if key != "truth"})
        np.savez(tmp_path / "odd.npz", mean=archive["mean"])
    assert recluster(tmp_path / "blind.npz", "agglomerative", None)["ari"] is None
    with pytest.raises(FedfluxError, match="no true clusters"):
        recluster(tmp_path / "blind.npz", "kmeans", "true")
    with pytest.raises(FedfluxError, match=r"holds no descriptors\.npz"):
        recluster(tmp_path, "agglomerative", None)
    with pytest.raises(FedfluxError, match="does not exist"):
        recluster(tmp_path / "none", "agglomerative", None)
    with pytest.raises(FedfluxError, match="it lacks"):
        recluster(tmp_path / "odd.npz", "agglomerative", None)


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "single array"])
def test_damaged_files_get_one_line(finished: dict[str, Any], damage: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(Path(finished["run_dir"]) / "descriptors.npz", tmp_path / "d.npz"))
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        for at in range(200, len(content) // 2):
            content[at] ^= 0xFF
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("not an archive")
    else:
        with file.open("wb") as handle:
            np.save(handle, np.eye(3))
    with pytest.raises(FedfluxError, match="not a readable"):
        recluster(file, "agglomerative", None)
