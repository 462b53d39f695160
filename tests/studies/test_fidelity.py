"""R1 as `fedflux fidelity` measures it: transport is exact, blocks add up, and the answer is what scripts rely on."""

import json
import os
import signal
import subprocess
import sys
from itertools import combinations
from math import lcm
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from tests.runs.making import strict_json

from fedflux.cli import main as cli
from fedflux.descriptors.moments import Moments
from fedflux.studies.fidelity import CLIENTS, transport
from fedflux.studies.fidelity.clouds import Cloud
from fedflux.studies.fidelity.compared import _violations, compare_clouds
from fedflux.studies.fidelity.optimal_transport import squared_w2
from fedflux.studies.paper import fidelity_rows

SMALL = ("fidelity", "--clients", "4", "--rounds", "2", "--levels", "3,5", "--points", "40", "--device", "cpu")


def cloud(z: np.ndarray, y: np.ndarray, client: int = 0, round: int = 1, classes: int = 2) -> Cloud:
    """All of its points are drawn, so that moments and points tell of the same."""
    groups = [np.ones(len(y), dtype=bool), *(y == u for u in range(classes))]
    length = z.shape[1]
    count = np.array([members.sum() for members in groups])
    mean = np.array([z[m].mean(axis=0) if m.any() else np.zeros(length) for m in groups])
    spread = [np.cov(z[m].T, bias=True) if m.sum() > 1 else np.zeros((length, length)) for m in groups]
    return Cloud(client, round, Moments(count, mean, np.array(spread)), (z, y), None)


@pytest.mark.parametrize("sizes", [(6, 6), (4, 6), (1, 5), (9, 3)])
def test_transport_is_the_assignment_of_repeated_points(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(sizes))
    first, second = (rng.normal(size=(size, 3)) for size in sizes)
    whole = lcm(*sizes)
    a, b = np.repeat(first, whole // sizes[0], axis=0), np.repeat(second, whole // sizes[1], axis=0)
    cost = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
    assert np.isclose(squared_w2(first, second), cost[linear_sum_assignment(cost)].mean())


def test_equal_sizes_agree_with_pot() -> None:
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(30, 4)), rng.normal(1, 2, size=(30, 4))
    weights = np.full(30, 1 / 30)
    assert np.isclose(squared_w2(first, second), ot.emd2(weights, weights, ot.dist(first, second)))


def test_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    made = [[rng.normal(size=(size, 2)) for size in (5, 2, 3)] for _ in range(6)]
    first, second = np.triu_indices(6, k=1)
    alone = transport.transport(made, first, second)
    monkeypatch.setattr(transport, "FEW", 1)
    monkeypatch.setattr(transport, "CHUNK", 4)
    monkeypatch.setattr(transport, "cores", lambda: 2)
    told: list[int] = []
    assert np.array_equal(transport.transport(made, first, second, told.append), alone)
    assert told == [4, 8, 12, 15]


ORPHANS = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedflux.studies.child import behave

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), behave)
    print(pool.submit(os.getpid).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_leave_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(ORPHANS)
    env = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert parent.stdout.read() == b""  # whoever writes there has left, the worker too
    assert parent.returncode == -signal.SIGKILL
    state = Path(f"/proc/{worker}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


@pytest.mark.parametrize("full", [False, True])
def test_moved_clouds_are_as_far_apart_as_they_were_moved(full: bool) -> None:
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(20, 3)), rng.integers(2, size=20)
    step = np.array([0.0, 3.0, 4.0])
    pairs, counted = compare_clouds([cloud(z + k * step, y, client=k) for k in range(3)], full)
    wanted = [5 * (j - i) * np.sqrt(3) for i, j in combinations(range(3), 2)]
    for found in (pairs.descriptor, pairs.points, pairs.gaussian, pairs.delta):
        assert np.allclose(found, wanted, atol=1e-4)
    assert np.allclose(pairs.points_marginal, np.array(wanted) / np.sqrt(3))
    assert counted["blocks_left_out"] == 0


def test_descriptors_of_deviations_lie_below_gaussians_and_those_below_points() -> None:
    rng = np.random.default_rng(2)
    made = []
    for k in range(8):
        z = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3)) + rng.normal(size=3)
        made.append(cloud(z**3 if k % 2 else z, rng.integers(2, size=30), k, round=1 + k // 4))
    pairs, counted = compare_clouds(made, full=False)
    assert (pairs.descriptor < pairs.gaussian + 1e-6).all()
    assert (pairs.gaussian < pairs.points + 1e-6).all()
    assert pairs.same_round.sum() == 12
    for kind in ("full", "diagonal"):
        assert counted["bounds"][kind] == {"pairs": 28, "below": 0, "above": 0, "without_upper": 0}
    assert counted["bounds"]["points"]["below"] == 0
    assert counted["bounds"]["deviations_above_gaussian"] == 0


def test_a_class_that_one_side_lacks_is_left_out_on_both() -> None:
    rng = np.random.default_rng(4)
    z, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    without = np.zeros(20, dtype=np.int64)
    pairs, counted = compare_clouds([cloud(z, y), cloud(z + 1, y), cloud(z + 1, without)], full=False)
    assert counted["blocks_left_out"] == pytest.approx(2 / 9)
    assert np.isfinite(pairs.points).all()
    assert np.isclose(pairs.descriptor[0], np.sqrt(3 * 3))


def test_pairs_outside_the_bounds_are_counted() -> None:
    delta, w2 = np.ones(4), np.array([0.1, 1.0, 3.0, 9.0])
    low, high = np.full(4, 0.5), np.array([2.0, 2.0, 2.0, np.inf])
    found = _violations(delta, w2, low, high, np.zeros(4))
    assert found == {"pairs": 4, "below": 1, "above": 1, "without_upper": 1}


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedflux", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    shown = capsys.readouterr()
    return int(stop.value.code or 0), shown.out, shown.err


def test_the_command_answers_with_json_and_keeps_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, monkeypatch, *SMALL, "--out", "f", "--json")
    assert status == 0
    answer = strict_json(out.splitlines()[-1])
    assert answer["pairs"] == 2 * 28
    assert 0 <= answer["min"] <= answer["mean"] <= answer["max"]
    assert [row["level"] for row in answer["levels"]] == [3, 5]
    for row in answer["levels"]:
        assert row["pairs"] == 28
        assert row["same_round"]["pairs"] == 12
        for kind in ("full", "diagonal"):
            assert (row["bounds"][kind]["below"], row["bounds"][kind]["above"]) == (0, 0)
        assert row["gaussian"]["correlation"] > 0.9
    assert json.loads((tmp_path / "f" / "fidelity.json").read_text())["mean"] == answer["mean"]
    assert (tmp_path / "f" / "fidelity.png").read_bytes().startswith(b"\x89PNG")
    with np.load(tmp_path / "f" / "pairs.npz") as kept:
        error = np.abs(kept["level_3_descriptor_points"] - kept["level_3_points"])
    assert np.isclose(error.mean(), answer["levels"][0]["mean"], rtol=1e-4)
    status, out, _ = call(capsys, monkeypatch, *SMALL, "--out", "f")
    assert status == 0
    assert f"{answer['levels'][0]['mean']:.3f}" in out  # the same numbers again


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--points", "1"), "--points 1: give 2 or more"),
        (("--levels", "9"), "9"),
        (("--levels", "x"), "--levels 'x' does not fit"),
        (("--dataset", "minst"), "did you mean 'mnist'"),
        (("--clients", "1", "--rounds", "1"), "give 2 or more clients, or rounds"),
    ],
)
def test_bad_input_is_one_line(
    more: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, monkeypatch, "fidelity", *more, "--json")
    assert (status, out, err.strip().count("\n")) == (2, "", 0)
    assert words in err
    assert not list(tmp_path.iterdir())


def test_without_pot_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ot", None)
    status, out, err = call(capsys, monkeypatch, *SMALL, "--json")
    assert (status, out) == (2, "")
    assert "fedflux[fidelity]" in err
    assert not list(tmp_path.iterdir())


def test_the_paper_beside_ours() -> None:
    assert CLIENTS * 10 * (CLIENTS * 10 - 1) // 2 == 44_850
    assert {level: row["mean"] for level, row in fidelity_rows("mnist", "pygx").items()} == {
        3: 0.526,
        5: 0.479,
        7: 0.458,
    }
    assert fidelity_rows("cifar10", "pygx")[3]["min"] == 0.00017
    assert not fidelity_rows("mnist", "px")
