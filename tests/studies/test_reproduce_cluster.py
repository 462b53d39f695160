"""Cells on a Dask cluster whose worker is this process: the store stays here, and folders need not be shared."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import Store
from fedflux.studies import cluster as clusters
from fedflux.studies.compare import Cell, Status, plan, run_cells
from fedflux.studies.workers import work_here

distributed = pytest.importorskip("distributed")
SMALL = {"clients": 3, "rounds": 2, "cluster_round": 1, "device": "cpu"}


@pytest.fixture
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None, silence_logs="ERROR"
    ) as made:
        yield made


def where(made: Any) -> str:
    return str(made.scheduler_address).replace("tcp://", "dask://")


def grid(out: Path) -> list[Cell]:
    return plan(SMALL, ["fedavg", "flux"], ["px"], [3], [42], out)


def scores(store: Store) -> dict[str, Any]:
    return {cell["identity"]: (cell["known"], cell["test"]) for cell in store.cells()}


@pytest.mark.parametrize("shared", [True, False])
def test_cells_are_those_of_this_machine(
    shared: bool, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_is_shared", lambda mark: shared and Path(mark[0]).read_text() == mark[1])
    heard: list[str] = []

    def listen(status: Status) -> None:
        heard.extend(status.running.values())

    there, here = tmp_path / "there", tmp_path / "here"
    status = run_cells(grid(there), Store(there), 1, listen, clusters.on_cluster(where(cluster)))
    assert (len(status.results), status.failed) == (2, {})
    run_cells(grid(here), Store(here), 1, work=lambda runs, jobs, tell: work_here(runs, tell, None, None))
    assert scores(Store(there)) == scores(Store(here))
    assert {len(Store(there).rounds(name)) for name in scores(Store(there))} == {2}
    assert "round 2/2" in heard
    folders = [path for path in there.iterdir() if path.is_dir()]
    assert len(folders) == (2 if shared else 0)
    assert not list(there.glob(".cluster-*"))
    again = run_cells(grid(there), Store(there), 1, None, clusters.on_cluster(where(cluster)))
    assert again.before == 2


def test_a_cell_that_fails_says_why(cluster: Any, tmp_path: Path) -> None:
    cells = plan({**SMALL, "lr": 1e30}, ["fedavg"], ["px"], [3], [42], tmp_path)
    status = run_cells(cells, Store(tmp_path), 1, None, clusters.on_cluster(where(cluster)))
    assert "diverged" in status.failed[0]


def test_workers_with_several_threads_are_refused(tmp_path: Path) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None, silence_logs="ERROR"
    ) as made, pytest.raises(FedfluxError, match="has 2 threads; start it with --nthreads 1"):  # fmt: skip
        run_cells(grid(tmp_path), Store(tmp_path), 1, None, clusters.on_cluster(where(made)))


@pytest.mark.parametrize("told", ["dusk", "dask://", "dask://host", "dask://host:port", "tcp://host:1"])
def test_a_place_that_is_none_is_bad_input(told: str) -> None:
    with pytest.raises(FedfluxError, match="give dask, for a cluster of this machine, or dask://HOST:PORT"):
        clusters.on_cluster(told)


def test_without_dask_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FedfluxError, match=r"pip install 'fedflux\[cluster\]'"):
        clusters.on_cluster("dask")


def test_a_cluster_that_is_not_there_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.5)
    with pytest.raises(FedfluxError, match="cannot use this cluster"):
        run_cells(grid(tmp_path), Store(tmp_path), 1, None, clusters.on_cluster("dask://127.0.0.1:9"))
