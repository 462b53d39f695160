"""What scripts rely on: the stable names, what they take, and what is found on what they give."""

import inspect
from typing import Any

import pytest

import fedflux

RUN = "model=None, algorithm=None, clusterer=None, on_round=(), metrics=None, progress=None, out=None, **options"
GRID = "algorithms=('fedavg', 'flux'), shifts=None, levels=None, seeds=None"
SIGNATURES = {
    "run": f"federation=None, *, {RUN}",
    "compare": f"federation=None, *, {GRID}, model=None, clusterer=None, reference=None, jobs=1, progress=None, "
    "out=None, **options",
    "load": "path, *, model=None",
    "EarlyStopping": "patience=5, least=0.0",
    "Describer": "encode=None, *, classes, epsilon=None, delta=1e-05, client=0, seed=0",
    "Describer.bounds": "x",
    "Describer.scatter": "x, y, extractor, *, group=None",
    "Describer.describe": "x, y, extractor, *, group=None, validation=None, validation_group=None",
    "Describer.tries": "x, offer, *, group=None",
    "Describer.scores": "x, offer, *, group=None",
    "FluxClustering": "clusterer='calibrated', *, n_clusters=None, significance=0.01, components=10, epsilon=None, "
    "delta=1e-05, privacy_unit='record'",
    "FluxClustering.extractor": "bounds, *, scatter=None",
    "FluxClustering.private_extractor": "public, classes, *, releases=1",
    "FluxClustering.fit": "X, y=None, *, extractor=None",
    "FluxClustering.calibrate": "tries",
    "FluxClustering.predict": "X",
    "FluxClustering.predict_proba": "X",
    "FluxClustering.place": "scores, *, novelty_level=0.05",
    "Result.plot": "",
    "Result.report": "out=None",
    "Result.load": "",
    "Result.to_dict": "",
    "TrainedRun.assign": "x, y=None, *, group=None",
    "TrainedRun.predict": "x, y=None, *, client=None, group=None",
    "TrainedRun.answer": "x, y=None, *, group=None",
    "TrainedRun.model": "client",
    "TrainedRun.model_for": "x, y=None, *, group=None",
}
"""What everyone may be called with. What stands here may grow at its end; nothing of it goes or changes its meaning."""
ATTRIBUTES = {
    "Placement": {"cluster", "posterior", "novel", "score", "calibrated", "confidence", "take"},
    "Progress": {"round", "rounds", "accuracy", "clusters", "events"},
    "Result": {"known", "test", "worst", "unseen", "clients", "rounds"},
    "TrainedRun": {"clients", "class_names", "clusters", "result", "config", "path"},
}


def parameters(thing: Any, method: bool) -> str:
    """As a signature reads, without types."""
    told = inspect.signature(thing)
    kept = [one.replace(annotation=inspect.Parameter.empty) for one in told.parameters.values()]
    return str(inspect.Signature(kept[1:] if method else kept))[1:-1]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_stay(name: str) -> None:
    owner, _, method = name.partition(".")
    thing = getattr(fedflux, owner)
    assert parameters(getattr(thing, method) if method else thing, bool(method)) == SIGNATURES[name]


def test_the_names_stay() -> None:
    assert set(fedflux.__all__) == {
        *("Describer", "EarlyStopping", "Federation", "FedfluxError", "FluxClustering", "Placement", "Progress"),
        *("Result", "TrainedRun", "__version__", "compare", "load", "run"),
    }
    assert sorted(fedflux.__all__) == fedflux.__all__


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_what_is_found_on_them_stays(name: str) -> None:
    kind = getattr(fedflux, name)
    there = {*dir(kind), *getattr(kind, "__dataclass_fields__", {})}
    assert there >= ATTRIBUTES[name]
