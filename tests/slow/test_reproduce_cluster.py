"""A Dask cluster of two worker processes on loopback: one is killed in the midst, and nothing is lost or done twice."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fedflux.files import read_lines
from fedflux.runs.storage.store import Store
from fedflux.studies.cluster import on_cluster
from fedflux.studies.compare import Cell, Status, plan, run_cells

pytestmark = pytest.mark.slow
distributed = pytest.importorskip("distributed")
SMALL = {"clients": 4, "rounds": 3, "cluster_round": 1, "device": "cpu"}
EXACT = ("known", "test", "known_per_client", "test_per_client", "assignment", "clusters_found", "bytes_up")


def grid(out: Path) -> list[Cell]:
    return plan(SMALL, ["fedavg", "flux"], ["px", "pygx", "pxgy"], [3, 5], [42, 43], out)


def results(store: Store) -> dict[str, dict[str, Any]]:
    return {cell["identity"]: {name: cell["result"][name] for name in EXACT} for cell in store.cells()}


def test_a_killed_worker_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    killed: list[int] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address=None, silence_logs="ERROR"
    ) as cluster:

        def kill_one(status: Status) -> None:
            if not killed and len(status.results) >= 5 and status.running:
                killed.append(int(next(iter(cluster.workers.values())).pid))
                os.kill(killed[0], signal.SIGKILL)

        address = cluster.scheduler_address.replace("tcp://", "dask://")
        cells = grid(there)
        assert len(cells) == 24
        status = run_cells(cells, Store(there), 2, kill_one, on_cluster(address))
    assert killed
    assert (len(status.results), status.failed, len(Store(there))) == (24, {}, 24)
    assert any("its process was killed; it is taken up again" in note for note in status.notes)
    run_cells(grid(here), Store(here), 1)
    assert results(Store(there)) == results(Store(here))
    for cell in cells:
        folder = Path(cell.config.out or "")
        assert [line["round"] for line in read_lines(folder / "rounds.jsonl")] == [1, 2, 3]
        assert len([line for line in read_lines(folder / "events.jsonl") if line["event"].startswith("finished")]) == 1
