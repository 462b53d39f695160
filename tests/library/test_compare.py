"""Methods beside each other from Python: as the command line compares them, on data and code of one's own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.runs.making import make_client, save_clients
from torch import nn

import fedflux
from fedflux.algorithms import FedAvg
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.runs.storage.store import Store

SMALL: dict[str, Any] = {"clients": 4, "rounds": 2, "cluster_round": 1, "device": "cpu", "progress": False}


def own_federation(folder: Path, clients: int = 4, seed: int = 0) -> Federation:
    folder.mkdir(exist_ok=True)
    held = [make_client(seed + k, 40, negative=k % 2 == 1) for k in range(clients)]
    return partition(load("npz", save_clients(folder / f"{seed}.npz", held)), Partition("none", clients=clients))


def make_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 8), nn.ReLU(), nn.Linear(8, classes))
    layers.encoder = "2"  # type: ignore[assignment]
    return layers


@dataclass(frozen=True)
class Slow(FedAvg):
    """FedAvg under another name."""

    revision: ClassVar[int] = 1
    pace: float = 1.0


def test_a_table_of_a_grid_is_what_runs_come_to(tmp_path: Path) -> None:
    table = fedflux.compare(shifts=["px", "pygx"], levels=3, seeds="42-43", dataset="digits", **SMALL)
    assert list(zip(table.algorithm, table["shift"], strict=True)) == [
        (algorithm, shift) for algorithm in ("fedavg", "flux") for shift in ("px", "pygx")
    ]
    assert (table.dataset == "digits").all()
    assert table.known_mean.between(1, 100).all()
    assert table.seeds.tolist() == [[42, 43]] * 4
    assert table.test_mean.isna().tolist() == [False, True, False, True]
    single = fedflux.run(dataset="digits", shift="px", level=3, seed=43, algorithm="flux", **SMALL)
    rows = [one for one in table.attrs["runs"] if (one["algorithm"], one["shift"], one["seed"]) == ("flux", "px", 43)]
    assert [one["known"] for one in rows] == [single["known"]]
    assert table.attrs["reference"] == "fedavg"
    assert table.attrs["known_differences"][0]["algorithm"] == "flux"


def test_nothing_is_written_unless_a_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fedflux.compare(algorithms=["local"], shifts="px", dataset="digits", **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From this call on every run is an error."""

    def run_config(*_: Any, **__: Any) -> Any:
        raise AssertionError("a finished cell was run again")

    return lambda: monkeypatch.setattr("fedflux.studies.workers.run_config", run_config)


def test_own_federations_methods_and_models_are_compared_and_gone_on_with(
    tmp_path: Path, idle: Callable[[], None]
) -> None:
    federations = {"north": own_federation(tmp_path, 4), "south": own_federation(tmp_path, 5, seed=9)}
    instance = Slow(None, pace=0.5)  # type: ignore[arg-type]
    asked: dict[str, Any] = {"algorithms": ["fedavg", Slow, instance], "model": make_model, "out": tmp_path / "grid"}
    rest = {key: value for key, value in SMALL.items() if key != "clients"}
    first = fedflux.compare(federations, **asked, **rest)
    assert first.dataset.tolist() == ["north"] * 3 + ["south"] * 3
    assert set(first["shift"]) == {"none"}
    assert [name.partition("(")[2] for name in first.algorithm[:3]] == ["", "", "pace=0.5)"]
    np.testing.assert_array_equal(first.known_mean[:1].repeat(3), first.known_mean[:3])
    store = Store(tmp_path / "grid")
    assert len(store) == 6
    other = fedflux.compare(federations, **{**asked, "algorithms": [replace(instance, pace=0.6)]}, **rest)
    assert len(other) == 2
    assert len(store) == 8
    idle()
    assert fedflux.compare(federations, **asked, **rest).equals(first)


def test_another_scaling_is_found_again_too(tmp_path: Path, idle: Callable[[], None]) -> None:
    asked: dict[str, Any] = {"algorithms": ["local"], "shifts": "px", "dataset": "digits", "scale": "standardise"}
    first = fedflux.compare(**asked, out=tmp_path, **SMALL)
    idle()
    assert fedflux.compare(**asked, out=tmp_path, **SMALL).equals(first)


def test_what_fails_is_said_and_the_others_are_kept(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Broken(FedAvg):
        revision: ClassVar[int] = 1

        def round(self, *_: Any) -> Any:
            raise RuntimeError("no luck")

    with pytest.warns(UserWarning, match=r"Broken.* failed: RuntimeError: no luck"):
        table = fedflux.compare(algorithms=["fedavg", Broken], shifts="px", dataset="digits", **SMALL)
    assert table.algorithm.tolist() == ["fedavg"]
    with pytest.warns(UserWarning, match="no luck"), pytest.raises(fedflux.FedfluxError, match="nothing could be run"):
        fedflux.compare(algorithms=[Broken], shifts="px", dataset="digits", **SMALL)


def test_objects_do_not_travel_to_other_processes() -> None:
    with pytest.raises(fedflux.FedfluxError, match="lives in this process alone"):
        fedflux.compare(algorithms=[Slow], dataset="digits", jobs=2, **SMALL)
    with pytest.raises(fedflux.FedfluxError, match="'flx' is unknown"):
        fedflux.compare(algorithms=["flx"], dataset="digits", **SMALL)
