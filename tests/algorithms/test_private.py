"""Private descriptors on an engine: nothing leaves but through the release, copies count once, the result says so."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedflux.algorithms.flux.describe import DescriptorSettings, Extractor, describe_unlabelled, fit_extractor
from fedflux.data import Cohort, Features, Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.privacy import accounting
from fedflux.descriptors.privacy.accounting import Privacy, opendp
from fedflux.descriptors.privacy.mechanism import with_paper_noise
from fedflux.descriptors.queries import AskUnlabelled
from fedflux.descriptors.wire import join_arrays
from fedflux.engine import Engine, SimulatedEngine, make_engine
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config
from fedflux.runs.identity import determines, identity
from fedflux.runs.privacy_report import KEYS, privacy_report
from fedflux.runs.runner import run_config
from fedflux.runs.storage.folder import RoundLog

GAUSSIAN = DescriptorSettings(components=5, privacy=Privacy("gaussian", 1.0))


def clients_of(shift: str, **told: Any) -> Federation:
    return partition(load("digits"), Partition(shift, level=4, clients=4, seed=5, **told))


@pytest.fixture(scope="module")
def engine() -> SimulatedEngine:
    return make_engine("loop", "mlp", clients_of("none"), seed=5)


def extractor_of(cohort: Cohort, engine: Engine, settings: DescriptorSettings = GAUSSIAN) -> Extractor:
    found = fit_extractor(engine.initial(), cohort, engine, settings)
    assert found is not None
    return found


def sent(extractor: Extractor, cohort: Cohort, engine: Engine) -> dict[str, Any]:
    """What labelled clients send, together."""
    return {**join_arrays(engine.ask(extractor.question, cohort, extractor.reference).arrays)}


def sent_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> dict[str, Any]:
    """What clients without labels send, together."""
    return {**join_arrays(engine.ask(AskUnlabelled(extractor.question), features, extractor.reference).arrays)}


def told_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Descriptors:
    told = describe_unlabelled(extractor, features, engine)
    assert told is not None
    return told.descriptors


class Tap:
    """Stands where the noise is drawn: keeps what comes in, gives out numbers that know nothing of it."""

    def __init__(self) -> None:
        self.seen: list[NDArray[np.float64]] = []

    def __call__(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        self.seen.append(values)
        return 50 * np.random.default_rng(len(values)).random(len(values))


def test_nothing_leaves_a_client_but_through_the_release(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    told = []
    for shift in ("none", "pygx"):  # clients of the same sizes with other labels
        tap = Tap()
        monkeypatch.setattr(accounting, "gaussian_noise", tap)
        cohort = clients_of(shift).cohort(range(4))
        extractor = extractor_of(cohort, engine)
        told.append(sent(extractor, cohort, engine))
        dark = [Features(1 - one.x / 16 if shift == "none" else one.x / 16) for one in cohort.features("test")]
        unlabelled = sent_unlabelled(extractor, dark, engine)
        told[-1] |= {f"unlabelled {key}": value for key, value in unlabelled.items()}
        projector = extractor.question.projector
        told[-1] |= {"centre": projector.mean, "axes": projector.components}
        told[-1]["seen"] = np.concatenate(tap.seen)
        assert extractor.question.bounds is None
        assert extractor.up == extractor.down == 0
    one, other = told
    assert (one.pop("seen") != other.pop("seen")).any()
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_copies_of_an_example_count_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    for told in ({"shift": "py"}, {"shift": "none", "duplicate": 3}):
        tap = Tap()
        monkeypatch.setattr(accounting, "gaussian_noise", tap)
        federation = clients_of(**told)
        cohort = federation.cohort(range(4))
        extractor = extractor_of(cohort, engine)
        arrays = sent(extractor, cohort, engine)
        for k, seen in enumerate(tap.seen):
            rows, labels = federation.source_rows(k, "train"), federation.labels(k, "train")
            once = np.bincount(labels[np.unique(rows, return_index=True)[1]], minlength=10)
            np.testing.assert_allclose(seen[:10], once / 2**0.5)
            assert arrays["size"][k] == once.sum() < federation.size(k, "train")


def test_copies_that_look_different_count_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    federation = clients_of("px+py", strength=0.5)
    tinted = make_engine("loop", "mlp", federation, seed=5)
    cohort = federation.cohort(range(4))
    extractor = extractor_of(cohort, tinted)
    found = told_unlabelled(extractor, cohort.features("test"), tinted)
    distinct = [len(np.unique(federation.source_rows(k, "test"))) for k in cohort]
    assert found.count[:, 0].tolist() == distinct
    assert sum(distinct) < sum(federation.size(k, "test") for k in cohort)


@pytest.mark.parametrize("algorithm", ["flux-dynamic", "flux-soft"])
@pytest.mark.parametrize("epsilon", [1.0, 50.0])
def test_runs_that_describe_again_compose(algorithm: str, epsilon: float, tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    told = {"dataset": "digits", "clients": 4, "rounds": 4, "cluster_round": 1, "engine": "loop", "store": "none"}
    config = make_config({**told, "algorithm": algorithm, "epsilon": epsilon, "out": str(tmp_path / "a")})
    result = run_config(config)
    promised = config.privacy()
    assert promised is not None
    assert promised.releases == {"flux-dynamic": 7, "flux-soft": 4}[algorithm]
    assert 0.99 * epsilon < result["epsilon"] <= epsilon
    assert f"{promised.releases} releases of the same examples composed" in result["privacy_scope"]


def test_equal_images_of_unlabelled_clients_count_once(engine: Engine) -> None:
    pytest.importorskip("opendp")
    cohort = clients_of("none").cohort(range(4))
    extractor = extractor_of(cohort, engine)
    x = cohort.data(0, "test").x
    found = told_unlabelled(extractor, [Features(x), Features(x.repeat(3, 1, 1, 1))], engine)
    assert found.count[:, 0].tolist() == [len(x), len(x)]
    assert (found.mean[0] != found.mean[1]).any()  # noise of their own


def test_the_papers_noise_has_the_papers_scale(engine: Engine) -> None:
    pytest.importorskip("opendp")
    cohort = clients_of("none").cohort(range(4))
    settings = DescriptorSettings(components=5, privacy=Privacy("paper", 2.0))
    extractor = extractor_of(cohort, engine, settings)
    plain = extractor_of(cohort, engine, DescriptorSettings(components=5))
    exact = told_unlabelled(plain, cohort.features("test"), engine)
    box = Bounds(np.zeros(3, dtype=np.float32), np.array([1, 2, 4], dtype=np.float32))
    noisy = with_paper_noise(exact.take([0] * 400), box, 2.0)
    scale = 4 / (exact.count[0, 0] * 2.0)
    assert np.abs(noisy.mean - exact.mean[0]).mean() == pytest.approx(scale, rel=0.1)
    np.testing.assert_allclose(noisy.noise, 2 * scale**2)
    told = told_unlabelled(extractor, cohort.features("test"), engine)
    assert (told.mean != exact.mean).all()


def test_a_run_says_what_it_spent(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    told = {"dataset": "digits", "clients": 4, "rounds": 2, "cluster_round": 1, "engine": "loop", "store": "none"}
    result = run_config(make_config({**told, "epsilon": 2.0, "out": str(tmp_path / "a")}))
    assert 1.99 < result["epsilon"] <= 2.0
    assert (result["epsilon_nominal"], result["delta"]) == (2.0, 1e-5)
    assert result["adjacency"].startswith("replace-one")
    assert result["mechanism"].startswith("gaussian")
    assert "model updates" in result["privacy_scope"]
    assert "released once" in result["privacy_scope"]
    for public in ("the set of classes", "the shape of an input", "how many distinct records"):
        assert public in result["privacy_scope"]
    again = run_config(make_config({"out": str(tmp_path / "a"), "resume": True}))
    assert again == result
    paper = run_config(make_config({**told, "epsilon": 2.0, "dp": "paper", "out": str(tmp_path / "b")}))
    assert (paper["epsilon"], paper["delta"], paper["epsilon_nominal"]) == (None, None, 2.0)
    assert "none that holds, so epsilon is null" in paper["privacy_scope"]
    plain = run_config(make_config({**told, "algorithm": "fedavg", "epsilon": 2.0, "out": str(tmp_path / "c")}))
    assert [plain[key] for key in KEYS] == [None] * len(KEYS)


def test_more_releases_than_planned_are_no_promise() -> None:
    pytest.importorskip("opendp")
    told = privacy_report(Privacy("gaussian", 1.0, releases=3), 10, 10, releases=3)
    assert 0.99 < told["epsilon"] <= 1.0
    assert "3 releases" in told["privacy_scope"]
    with pytest.raises(RuntimeError, match="3 releases"):
        privacy_report(Privacy("gaussian", 1.0, releases=2), 10, 10, releases=3)
    fewer = privacy_report(Privacy("gaussian", 1.0, releases=9), 10, 10, releases=3)
    assert 0.99 < fewer["epsilon"] <= 1.0  # what was planned: stopping early is no discount


@pytest.mark.parametrize(("lost", "made"), [(1, 1), (2, 2), (3, 1)])
def test_a_round_that_is_lost_and_repeated_is_released_twice(
    lost: int, made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients describe themselves in round 2: only when that one is repeated are there more releases than one."""
    pytest.importorskip("opendp")
    told = {"dataset": "digits", "clients": 4, "rounds": 3, "cluster_round": 2, "engine": "loop", "store": "none"}
    config = make_config({**told, "epsilon": 2.0, "out": str(tmp_path)})
    append = RoundLog.append

    def cut(log: RoundLog, record: dict[str, Any]) -> None:
        if record["round"] == lost:
            raise KeyboardInterrupt
        append(log, record)

    with monkeypatch.context() as patched:
        patched.setattr(RoundLog, "append", cut)
        with pytest.raises(KeyboardInterrupt):
            run_config(config)
    result = run_config(make_config({"out": str(tmp_path), "resume": True}))
    if made == 1:
        assert result["epsilon"] <= 2.0
        assert "released once" in result["privacy_scope"]
    else:
        assert result["epsilon"] > 2.5
        assert "up to 2 releases of the same examples" in result["privacy_scope"]


def test_the_promise_is_part_of_the_identity() -> None:
    pytest.importorskip("opendp")
    plain = make_config({})
    assert not {"dp", "epsilon", "delta"} & determines(plain).keys()
    assert identity(make_config({"delta": 1e-3}), "") == identity(plain, "")
    one = make_config({"epsilon": 1.0})
    others: list[dict[str, Any]] = [
        {"epsilon": 2.0},
        {"epsilon": 1.0, "delta": 1e-6},
        {"epsilon": 1.0, "dp": "paper"},
        {},
    ]
    assert len({identity(make_config(told), "") for told in [{"epsilon": 1.0}, *others]}) == 5
    assert identity(make_config({"epsilon": 1.0, "dp": "gaussian"}), "") == identity(one, "")
    fedavg = [make_config({"algorithm": "fedavg", **told}) for told in ({}, {"epsilon": 1.0})]
    assert identity(fedavg[0], "") == identity(fedavg[1], "")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"dp": "paper"}, "needs a budget"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": 1.0, "delta": 2.0}, "outside 0 to 1"),
        ({"epsilon": 1.0, "covariance": "full"}, "diagonal"),
        ({"epsilon": 1.0, "dp": "laplace"}, "gaussian or paper"),
    ],
)
def test_bad_promises_are_refused_in_one_line(told: dict[str, Any], words: str) -> None:
    pytest.importorskip("opendp")
    with pytest.raises(FedfluxError, match=words):
        make_config(told)


def test_without_opendp_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp", None)
    with pytest.raises(FedfluxError, match=r"fedflux\[privacy\]"):
        opendp()
    with pytest.raises(FedfluxError, match=r"fedflux\[privacy\]"):
        make_config({"epsilon": 1.0})
    assert make_config({}).privacy() is None
