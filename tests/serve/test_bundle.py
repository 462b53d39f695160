"""A bundle places and predicts as the run it is made of, without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.library.test_several_labels import clinic
from tests.serve.conftest import SMALL, images

import fedflux
from fedflux.clustering.placement.misfit import Misfit
from fedflux.clustering.placement.offer import Scores
from fedflux.errors import FedfluxError
from fedflux.serve.bundle import Bundle, build_bundle, open_bundle
from fedflux.serve.container import read_files, write_files
from fedflux.serve.graphs import Graph
from fedflux.serve.making import bundle_contents, export_bundle
from fedflux.serve.service.reading import HUGE


def assert_as_the_run(run: fedflux.TrainedRun, bundle: Bundle, x: Any) -> None:
    """Same cluster and novelty, and the same probabilities within 1e-5."""
    placement, assigned = run.assign(x), bundle.assign(bundle.scores(x))
    offered = [cluster.number for cluster in bundle.clusters]
    assert assigned.cluster.number == placement.cluster[0]
    assert assigned.novel == placement.novel[0]
    assert assigned.posterior == pytest.approx(placement.posterior[0][offered], abs=1e-5)
    assert assigned.score == pytest.approx(placement.score[0], abs=1.1e-3)  # told in thousandths
    assert bundle.predict(x, assigned.weights) == pytest.approx(run.predict(x), abs=1e-5)


@pytest.mark.parametrize("turned", range(4))
def test_new_clients_are_answered_as_by_the_run(run: fedflux.TrainedRun, bundle: Bundle, turned: int) -> None:
    for count in (1, 5, 60):
        assert_as_the_run(run, bundle, images(count, seed=count, turned=turned))


def test_a_bundle_of_coloured_clients_takes_colours_and_grey(run: fedflux.TrainedRun, bundle: Bundle) -> None:
    grey = images(30)
    coloured = np.repeat(grey, 3, axis=1)
    coloured[:, 1:] //= 3
    assert run.input_shape == (3, 8, 8)
    assert_as_the_run(run, bundle, coloured)
    np.testing.assert_array_equal(bundle.scores(grey).likelihood, bundle.scores(np.repeat(grey, 3, axis=1)).likelihood)


@pytest.mark.parametrize(
    "more", [{"sharing": "general"}, {"sharing": "trunk"}, {"epsilon": 5}, {"novel": "global"}, {"finetune": 1}]
)
def test_other_runs_of_flux_are_answered_alike(more: dict[str, Any], tmp_path: Path) -> None:
    fedflux.run(**SMALL, **more, out=tmp_path / "run", progress=False)
    run = fedflux.load(tmp_path / "run")
    export_bundle(run, tmp_path / "bundle")
    for turned in range(4):
        assert_as_the_run(run, open_bundle(tmp_path / "bundle"), images(30, turned=turned))


def test_tables_are_standardised_in_the_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1e4, 3, (240, 5))
    y = (x[:, 0] > 1e4).astype(int)
    x[120:, 1:] += 40
    np.savez(tmp_path / "table.npz", x=x, y=y, client=np.repeat(np.arange(6), 40))
    told: dict[str, Any] = {"dataset": "npz", "data_dir": tmp_path / "table.npz", "model": "mlp"}
    fedflux.run(**told, rounds=2, cluster_round=1, out=tmp_path / "run", progress=False)
    run = fedflux.load(tmp_path / "run")
    bundle = build_bundle(_written(bundle_contents(run), tmp_path), "here")
    assert bundle.form.kind == "wide"
    assert_as_the_run(run, bundle, x[:50])


def test_records_with_several_labels_are_answered_by_sigmoids(several: fedflux.TrainedRun, tmp_path: Path) -> None:
    export_bundle(several, tmp_path / "bundle")
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.several_labels
    for scanner in range(2):
        assert_as_the_run(several, bundle, clinic(np.random.default_rng(11), scanner)[0])
    found = bundle.predict(clinic(np.random.default_rng(12), 0)[0], bundle.of_member(0))
    assert (np.abs(found.sum(axis=1) - 1) > 0.1).any(), "no softmax"
    card = bundle.files["README.md"].decode()
    assert "may have several or none: oedema, mass, nodule, fibrosis." in card
    assert "## macro ROC AUC" in card


def _written(contents: dict[str, bytes], folder: Path) -> Any:
    write_files(folder / "b.zip", contents)
    return read_files(folder / "b.zip")


def test_small_clusters_are_left_out(run: fedflux.TrainedRun, tmp_path: Path) -> None:
    sizes = np.bincount(list(run.clusters.values()))
    assert len(set(sizes.tolist())) > 1, "the run must have clusters of different sizes"
    least = int(sizes.max())
    bundle = build_bundle(_written(bundle_contents(run, least), tmp_path), "here")
    kept = np.flatnonzero(sizes >= least).tolist()
    assert [cluster.number for cluster in bundle.clusters] == kept
    assert bundle.card["left_out"] == len(sizes) - len(kept)
    assert len(bundle.offer.mixtures) == len(kept)
    assert {name.partition("-")[2] for name in bundle.models} <= {str(number) for number in kept}
    with pytest.raises(FedfluxError, match="every cluster has fewer than 99 members"):
        bundle_contents(run, 99)


def test_densities_are_those_that_place(bundle: Bundle) -> None:
    latents = bundle.describe(images(40))
    graph = Graph.of(bundle.files["densities.onnx"], "here", "densities")
    assert graph(latents) == pytest.approx(bundle.offer.mixtures.densities(latents), rel=1e-5, abs=1e-4)


def test_nobody_is_named(run: fedflux.TrainedRun, contents: dict[str, bytes]) -> None:
    assert "/" not in json.loads(contents["bundle.json"])["run"]["dataset"]
    for name in (one for one in run.clients if len(one) > 3):
        assert all(name.encode() not in content for content in contents.values())
    card = contents["README.md"].decode()
    assert "## Privacy" in card
    assert f"{len(run.clients)} clients" in card


@pytest.mark.parametrize("algorithm", ["fedavg", "ifca"])
def test_runs_that_place_nobody_by_looks_make_no_bundle(algorithm: str, tmp_path: Path) -> None:
    told = {name: value for name, value in SMALL.items() if name != "cluster_round"}
    fedflux.run(**told, algorithm=algorithm, out=tmp_path / "run", progress=False)
    with pytest.raises(FedfluxError, match=f"made of a FLUX run: {algorithm}"):
        bundle_contents(fedflux.load(tmp_path / "run"))


ANY = st.floats(-HUGE, HUGE)
SIZE = st.floats(0, HUGE)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), worth=st.floats(1e-6, HUGE), misfit=st.builds(Misfit, SIZE, SIZE, SIZE))
def test_whatever_scores_are_told_a_placement_is_one(
    bundle: Bundle, data: st.DataObject, worth: float, misfit: Misfit
) -> None:
    count = len(bundle.clusters)
    likelihood = np.array(data.draw(st.lists(ANY, min_size=count, max_size=count)))
    found = bundle.assign(Scores(likelihood, worth, misfit))
    assert found.posterior.min() >= 0
    assert found.posterior.sum() == pytest.approx(1)
    assert 0 <= found.score <= 1
    assert sum(found.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((2, 1, 9, 9)), "shape"),
        (np.full((1, 1, 8, 8), 3e38), "too large for the models"),
        (np.zeros((0, 1, 8, 8)), "no record"),
        (np.full((1, 1, 8, 8), np.nan), "NaN"),
        ([["a"]], "numbers"),
        ([[1], [1, 2]], "unequal length"),
        (np.full((1, 1, 8, 8), 300), "pixels are 0 to 255"),
    ],
)
def test_odd_inputs_are_refused_in_one_line(x: Any, words: str, bundle: Bundle) -> None:
    with pytest.raises(FedfluxError, match=words):
        bundle.describe(x)


def test_bytes_pixels_and_layouts_are_understood_alike(bundle: Bundle) -> None:
    x = images(3)
    expected = bundle.describe(x)
    for same in (x / np.float32(255), x.astype(np.int64), x[:, 0], x.transpose(0, 2, 3, 1)):
        assert bundle.describe(same) == pytest.approx(expected, abs=1e-6)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["torch", "sklearn", "pandas"]))
import numpy as np
from fedflux.serve.bundle import open_bundle
bundle = open_bundle(sys.argv[1])
x = np.load(sys.argv[2])
assigned = bundle.assign(bundle.scores(x))
print(assigned.cluster.number, bundle.predict(x, assigned.weights).shape)
"""


def test_a_bundle_is_read_without_torch(run: fedflux.TrainedRun, folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images(9))
    command = [sys.executable, "-c", WITHOUT, str(folder), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{run.assign(images(9)).cluster[0]} (9, 10)\n", done.stderr
