"""A run that is opened again answers as its session did, bit for bit: new clients, and those that trained."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedflux
from fedflux.data import Cohort
from fedflux.engine import SimulatedEngine
from fedflux.errors import FedfluxError

CLIENTS, UNSEEN = 5, 2
SETTINGS: dict[str, Any] = {
    "shift": "px", "level": 3, "clients": CLIENTS, "unseen": UNSEEN, "rounds": 3, "cluster_round": 2, "device": "cpu",
    "samples_per_client": 60,
}  # fmt: skip


@dataclass
class Session:
    """What a session scored, by client: the images that it asked about, their labels, and its probabilities."""

    x: dict[int, NDArray[np.generic]] = field(default_factory=dict)
    y: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    known: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    unseen: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def listen(self, engine: SimulatedEngine, predictor: Any, cohort: Cohort) -> None:
        """Note what is answered with."""
        found = engine.predict(engine.resolved(predictor, cohort.ids), cohort.features("test"))
        for client, answer in zip(cohort, found, strict=True):
            data = cohort.data(client, "test")
            self.x[client], self.y[client] = data.x.numpy(), data.y.numpy()
            (self.known if client < CLIENTS and client not in self.known else self.unseen)[client] = answer


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Listens to every score on a test part."""
    heard, evaluate = Session(), SimulatedEngine.evaluate

    def listening(self: SimulatedEngine, predictors: Any, cohort: Cohort, split: Any) -> Any:
        if split == "test":
            heard.listen(self, predictors[0], cohort)
        return evaluate(self, predictors, cohort, split)

    monkeypatch.setattr(SimulatedEngine, "evaluate", listening)
    return heard


def run(folder: Path, **options: Any) -> fedflux.Result:
    return fedflux.run(**{**SETTINGS, "out": folder / "run", "store": "none", **options})


def check_unseen(result: fedflux.Result, session: Session) -> None:
    """New clients, all together and each by itself."""
    trained = result.load()
    names = range(CLIENTS, CLIENTS + UNSEEN)
    together = trained.predict({str(k): session.x[k] for k in names})
    assert isinstance(together, dict)
    for place, client in enumerate(names):
        np.testing.assert_array_equal(together[str(client)], session.unseen[client])
        np.testing.assert_array_equal(trained.predict(session.x[client]), session.unseen[client])
        right = (session.unseen[client].argmax(axis=1) == session.y[client]).mean()
        assert 100 * right == pytest.approx(result["unseen_per_client"][place], abs=1e-9)
    placed = result["unseen_placements"]
    if placed is None:
        with pytest.raises(FedfluxError, match=r"places nobody: it has no clusters; predict\(\) answers"):
            trained.assign(session.x[CLIENTS])
        return
    found = trained.assign({str(k): session.x[k] for k in names})
    assert found.cluster.tolist() == [one["cluster"] for one in placed]
    assert found.posterior.tolist() == [one["posterior"] for one in placed]
    assert found.score.tolist() == [one["novelty_score"] for one in placed]
    assert found.novel.tolist() == [one["novel"] for one in placed]


def check_known(result: fedflux.Result, session: Session) -> None:
    """Those that trained."""
    trained = result.load()
    for client in range(CLIENTS):
        found = np.asarray(trained.predict(session.x[client], client=client))
        np.testing.assert_array_equal(found, session.known[client])
        right = (found.argmax(axis=1) == session.y[client]).mean()
        assert 100 * right == pytest.approx(result["known_per_client"][client], abs=1e-9)
        with torch.no_grad():
            scores = trained.model(client)(torch.as_tensor(session.x[client]))
        np.testing.assert_allclose(scores.softmax(dim=1).numpy(), found, atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "flux"},
        {"algorithm": "flux", "sharing": "general"},
        {"algorithm": "flux", "assignment": "euclidean", "sharing": "none"},
        {"algorithm": "flux", "finetune": 2},
        {"algorithm": "flux-soft"},
        {"algorithm": "flux-dynamic", "drift": "after:2"},
        {"algorithm": "oracle"},
        {"algorithm": "fedavg"},
        {"algorithm": "fedavg", "finetune": 2},
        {"algorithm": "ifca"},
        {"algorithm": "fedem"},
        {"algorithm": "fedrc"},
        {"algorithm": "apfl"},
        {"algorithm": "haccs"},
        {"algorithm": "fesem"},
        {"algorithm": "cfl"},
        {"algorithm": "feddrift"},
        {"algorithm": "flux-prior"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_run_opened_again_answers_as_its_session_did(
    options: dict[str, Any], session: Session, tmp_path: Path
) -> None:
    result = run(tmp_path, **options)
    check_known(result, session)
    check_unseen(result, session)


@pytest.mark.parametrize("options", [{"sharing": "auto", "lr": 0.5}, {"sharing": "general", "lr": 0.2}], ids=str)
def test_where_answers_are_mixed_with_what_clusters_share(
    options: dict[str, Any], session: Session, tmp_path: Path
) -> None:
    result = run(tmp_path, algorithm="flux", **{**options, "rounds": 4})
    shares = result["sharing_parts"]["by_cluster"]
    assert any(0.1 < own < 0.9 for own, _ in shares), "nothing is mixed: this shows nothing"
    check_known(result, session)
    check_unseen(result, session)


@pytest.mark.parametrize("engine", ["processes", "stacked"])
@pytest.mark.parametrize(
    "options", [{"algorithm": "flux"}, {"algorithm": "apfl"}, {"algorithm": "fedavg", "finetune": 2}], ids=str
)
def test_whatever_engine_trained_it(engine: str, options: dict[str, Any], session: Session, tmp_path: Path) -> None:
    result = run(tmp_path, engine=engine, **options)
    check_known(result, session)
    check_unseen(result, session)


def test_methods_without_an_answer_for_some_say_so(session: Session, tmp_path: Path) -> None:
    for name in ("local", "pfedme"):
        result = run(tmp_path / name, algorithm=name)
        check_known(result, session)
        with pytest.raises(FedfluxError, match=f"{name} has no answer for clients that did not train with it"):
            result.load().predict(session.x[0])
        session.known.clear()
    result = run(tmp_path / "atp", algorithm="atp")
    check_unseen(result, session)
    with pytest.raises(FedfluxError, match="atp has no answer for clients that trained"):
        result.load().predict(session.x[CLIENTS], client=0)
    with pytest.raises(FedfluxError, match="atp fits its model to every batch that it answers"):
        result.load().model_for(session.x[CLIENTS])


def test_grey_images_of_a_federation_with_coloured_ones_are_taken_too(session: Session, tmp_path: Path) -> None:
    trained = run(tmp_path, algorithm="fedavg").load()
    assert trained.input_shape == (3, 8, 8)
    grey = session.x[CLIENTS][:, :1]
    np.testing.assert_array_equal(trained.predict(grey), trained.predict(np.repeat(grey, 3, axis=1)))
    scores = trained.model(0)(torch.as_tensor(grey))
    np.testing.assert_allclose(scores.detach().softmax(dim=1), np.asarray(trained.predict(grey, client=0)), atol=2e-6)
    with pytest.raises(FedfluxError, match=r"inputs of shape \(2, 8, 8\), but the run was trained on \(1, 8, 8\)"):
        trained.predict(session.x[CLIENTS][:, :2])
