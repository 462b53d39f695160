"""Whom a private release protects: a record, or a whole group."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedflux.data.holding import LooseHolding
from fedflux.data.labelled import Features
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.privacy.units import chosen, counted, one_of_each
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

GROUP = Privacy("gaussian", 1.0, unit="group", seed=3)


def test_one_record_of_each_group_enters() -> None:
    groups = np.array([7, 2, 7, 7, 2, 9])
    found = one_of_each(groups, seed=5)
    assert sorted(groups[found].tolist()) == [2, 7, 9]
    assert found.tolist() == sorted(found.tolist()) == one_of_each(groups, seed=5).tolist()
    assert {tuple(one_of_each(groups, seed).tolist()) for seed in range(40)} == {
        (i, j, 5) if i < j else (j, i, 5) for i in (0, 2, 3) for j in (1, 4)
    }


def test_exchanging_a_group_moves_no_other_choice() -> None:
    """Else a group could move more of the sums than its own record."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 50, size=400)
    kept = np.flatnonzero(groups != 11)
    exchanged = np.concatenate([groups[kept], np.full(73, 1000)])
    before, after = one_of_each(groups, 1), one_of_each(exchanged, 1)
    assert [k for k in before if groups[k] != 11] == [kept[k] for k in after if k < len(kept)]
    assert len(before) == len(after) == 50


def test_data_without_groups_is_refused_in_one_line() -> None:
    images = LooseHolding(Features(torch.zeros(3, 1, 2, 2)), 0)
    with pytest.raises(FedfluxError, match="this data has no groups"):
        chosen("test", GROUP)(images)
    assert counted(images, "test", Privacy("gaussian", 1.0)) == 1  # three copies of one image
    pytest.importorskip("opendp")
    told = {"dataset": "digits", "clients": 4, "rounds": 2, "store": "none", "engine": "loop"}
    with pytest.raises(FedfluxError, match="--privacy-unit group: digits has no groups"):
        run_config(make_config({**told, "epsilon": 1.0, "privacy_unit": "group"}))


@pytest.mark.parametrize("told", [{}, {"epsilon": 1.0, "dp": "paper"}])
def test_groups_are_protected_by_the_gaussian_release_alone(told: dict[str, Any]) -> None:
    pytest.importorskip("opendp")
    with pytest.raises(FedfluxError, match="--privacy-unit group is for the Gaussian release"):
        make_config({**told, "privacy_unit": "group"})


def test_a_run_says_whom_it_protects(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": rng.random((240, 1, 8, 8), dtype=np.float32),
        "y": np.arange(240) % 3,
        "group": np.arange(240) // 4,
    }
    arrays |= {"x_test": arrays["x"][:60], "y_test": arrays["y"][:60], "group_test": 1000 + arrays["group"][:60]}
    np.savez(tmp_path / "some.npz", **arrays)
    told = {"dataset": "npz", "data_dir": str(tmp_path / "some.npz"), "clients": 3, "shift": "none", "model": "mlp"}
    told |= {
        "rounds": 2,
        "cluster_round": 1,
        "engine": "loop",
        "store": "none",
        "epsilon": 5.0,
        "assignment": "calibrated",
        "scale": "pixels",
    }
    result = run_config(make_config({**told, "privacy_unit": "group", "out": str(tmp_path / "run")}))
    assert result["adjacency"].startswith("replace-one-group")
    assert "one record of each group" in result["privacy_scope"]
    assert "how many distinct groups" in result["privacy_scope"]
    assert 4.9 < result["epsilon"] <= 5.0
    with np.load(tmp_path / "run" / "descriptors.npz") as saved:
        sizes = saved["size"]
    assert (sizes <= 60).all()
    assert sizes.sum() <= 60  # of 240 records in 60 groups
