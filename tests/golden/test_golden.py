"""Numbers of version 0.1, recorded before its rooms were rebuilt: every method must go on giving them.

Where torch and the CPU's capability are those of the recording they are exact; elsewhere a client may differ by one
example. A cluster's number is only its name: FeSEM breaks ties between models by rounding, and processors of two makers
with one capability give two of its clusters each other's number, with the same members and models.
"""

import json
import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.golden.cells import KEYS, MNIST, cells

import fedflux
from fedflux.descriptors.privacy import accounting
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation

RECORDED = json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8"))
HERE = (torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.machine())
EXACT = (RECORDED["torch"], RECORDED["capability"], RECORDED["machine"]) == HERE
AT_ONCE = ("flux", "fedavg", "oracle", "local")
"""Methods whose numbers every change is held to; the others wait for the slow tests, but for one shift."""


def _marked(name: str) -> Any:
    slow = not name.startswith(AT_ONCE) and not name.endswith(" px")
    return pytest.param(name, marks=[pytest.mark.slow] if slow else [])


def _seeded(draw: str) -> Any:
    """Noise that follows from what it is added to, as the recording had it."""

    def noise(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        values = np.asarray(values, dtype=np.float64)
        generator = np.random.default_rng(int.from_bytes(sha256(values.tobytes()).digest()[:8], "little"))
        drawn: NDArray[np.float64] = values + getattr(generator, draw)(0.0, scale, values.shape)
        return drawn

    return noise


def _compare(name: str, options: dict[str, Any], folder: Path) -> None:
    how = {"preset": "0.1", **options, "engine": "loop", "device": "cpu", "out": str(folder), "store": "none"}
    found = fedflux.run(**how)
    wanted = RECORDED["runs"][name]
    assert wanted.keys() == set(KEYS)
    assert _in_order(found["assignment"]) == _in_order(wanted["assignment"])
    for key in ("bytes_up", "bytes_down", "cluster_round"):
        assert found[key] == wanted[key], key
    for key in ("known_per_client", "test_per_client"):
        if wanted[key] is None:
            assert found[key] is None, key
            continue
        got, told = (np.array(one[key], dtype=np.float64) for one in (found, wanted))
        if EXACT:
            np.testing.assert_array_equal(got, told, err_msg=key)
        else:
            np.testing.assert_array_less(np.abs(got - told)[~np.isnan(told)], _one_example(options)[~np.isnan(told)])


def _in_order(assignment: list[int]) -> list[int]:
    """Clusters numbered as clients meet them; nobody's, −1, stays."""
    names: dict[int, int] = {-1: -1}
    return [names.setdefault(cluster, len(names) - 1) for cluster in assignment]


def _one_example(options: dict[str, Any]) -> NDArray[np.float64]:
    """What one test example of every client is worth, in percent, and a little more."""
    federation, _ = build_federation(make_config(options))
    return np.array([100.001 / max(federation.size(k, "test"), 1) for k in range(len(federation))])


@pytest.mark.parametrize("name", [_marked(name) for name in cells()])
def test_numbers_of_0_1(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "gaussian_noise", _seeded("normal"))
    monkeypatch.setattr(accounting, "laplace_noise", _seeded("laplace"))
    _compare(name, cells()[name], tmp_path / "run")


@pytest.mark.skipif("FEDFLUX_DATA" not in os.environ, reason="FEDFLUX_DATA names no folder with the real datasets")
def test_numbers_of_0_1_with_convolutions(tmp_path: Path) -> None:
    _compare("mnist lenet5", {**MNIST, "data_dir": os.environ["FEDFLUX_DATA"]}, tmp_path / "run")
