"""Clients' examples on the device: there once, found again, bounded, and what was asked for whatever came between."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.making import Normed
from tests.engine.test_stacked import SHAPES, apart, make_federation

from fedflux.data import Cohort, Features, Federation, Labelled, Partition, partition
from fedflux.data.dataset import Dataset, Examples
from fedflux.engine import Job, Key, LoopEngine, Predictor, Training
from fedflux.engine.batched import arena as module
from fedflux.engine.batched.arena import Arena, OnDevice
from fedflux.engine.batched.replay import ReplayEngine
from fedflux.engine.batched.stacked import StackedEngine
from fedflux.models import build_model

SHAPE = SHAPES["mlp"]
EACH = 36 + 8
"""Bytes of an image and its label."""
TRAINING = Training(epochs=1, batch_size=8, lr=0.02, momentum=0.9)
SIZES = tuple(int(n) for n in np.random.default_rng(0).integers(5, 30, 20))


@pytest.fixture
def federation() -> Federation:
    return make_federation(SHAPE, SIZES)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, str]]:
    """How often a client's examples were asked of the host."""
    asked: Counter[tuple[int, str]] = Counter()
    data = Cohort.data

    def counted(cohort: Cohort, client: int, split: str) -> Labelled:
        asked[client, split] += 1
        return data(cohort, client, split)  # type: ignore[arg-type]

    monkeypatch.setattr(Cohort, "data", counted)
    return asked


def holds(found: OnDevice, federation: Federation, clients: list[int], split: str = "train") -> bool:
    expected = [federation.materialise(client, split) for client in clients]  # type: ignore[arg-type]
    rows = found.rows()
    return bool(found.x[rows].equal(torch.cat([one.x for one in expected]))) and bool(
        found.y[rows].equal(torch.cat([one.y for one in expected]))
    )


def test_only_newcomers_travel(federation: Federation, made: Counter[tuple[int, str]]) -> None:
    arena = Arena("cpu")
    tensor = None
    for clients in ([0, 3, 4], [4, 7, 3], [1, 0, 0, 7]):
        found = arena.place(federation.cohort(clients), clients, "train")
        assert holds(found, federation, clients)
        assert tensor is None or found.x is tensor
        tensor = found.x
    assert made == Counter({(client, "train"): 1 for client in (0, 3, 4, 7, 1)})
    arena.place(federation.cohort([0]), [0], "validation")
    assert made[0, "validation"] == 1


@pytest.mark.parametrize("clients", [3, 7])
def test_any_order_of_cohorts_within_the_bound(
    federation: Federation, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_BYTES", 50 * EACH)
    monkeypatch.setattr(module, "PIECE", 16)
    most = 250 * EACH
    arena = Arena("cpu", most)
    rng = np.random.default_rng(1)
    held = []
    for _ in range(60):
        chosen = rng.choice(20, clients, replace=False).tolist()
        split = str(rng.choice(["train", "validation"], p=[0.8, 0.2]))
        found = arena.place(federation.cohort(chosen), chosen, split)  # type: ignore[arg-type]
        assert holds(found, federation, chosen, split)
        assert arena.nbytes <= most
        assert len(arena._names) <= len(arena)
        held.append(len(arena))
    assert max(held) > min(held[5:])  # some had to go


def test_those_used_last_stay(federation: Federation, made: Counter[tuple[int, str]]) -> None:
    rows = [federation.stored(client, "train") for client in range(20)]
    arena = Arena("cpu", 2 * sum(rows[:6]) * EACH)
    for client in (*range(6), 0, *range(6, 20)):
        arena.place(federation.cohort([client]), [client], "train")
        arena.place(federation.cohort([0]), [0], "train")
    assert made[0, "train"] == 1


def test_one_request_beyond_the_bound_is_met(federation: Federation) -> None:
    arena = Arena("cpu", 10 * EACH)
    everyone = list(range(20))
    assert holds(arena.place(federation.cohort(everyone), everyone, "train"), federation, everyone)
    assert holds(arena.place(federation.cohort([2]), [2], "validation"), federation, [2], "validation")


def test_clients_are_found_by_their_tensors_and_no_others_are(federation: Federation) -> None:
    arena = Arena("cpu")
    arena.place(federation.cohort(range(4)), range(4), "train")
    data = [federation.materialise(client, "train") for client in (2, 0)]
    for known in (data, [one.features() for one in data]):
        found = arena.find(known)
        assert found is not None
        assert holds(found, federation, [2, 0])
    assert arena.find([data[0], federation.materialise(5, "train")]) is None
    assert arena.find([Labelled(data[0].x, data[0].y.flip(0), data[0].rows)]) is None
    assert arena.find([Features(data[0].x.clone())]) is None


def test_images_of_another_kind_begin_anew() -> None:
    arena = Arena("cpu")
    small, large = make_federation(SHAPE), make_federation((1, 8, 8))
    x = np.random.default_rng(0).random((20, 1, 8, 8))
    examples = Examples(x, np.arange(20) % 5)
    floats = partition(Dataset("floats", examples, examples, 5), Partition("none", 4, 2))
    for federation in (small, large, floats, small):
        assert holds(arena.place(federation.cohort([0, 1]), [0, 1], "train"), federation, [0, 1])
        assert len(arena) == 2


@pytest.mark.parametrize("kind", ["stacked", "replayed"])
def test_one_stepper_serves_cohorts_of_other_clients(federation: Federation, kind: str) -> None:
    torch.manual_seed(1)
    model = build_model("mlp", SHAPE, 5, seed=1) if kind == "stacked" else Normed(SHAPE, 5)
    loop = LoopEngine(model.double(), "cpu", "fp32-strict")
    other = (StackedEngine if kind == "stacked" else ReplayEngine)(model, "cpu", "fp32-strict")
    alike = replace(federation, duplicate=2)
    steppers = set()
    for round, ids in enumerate([(0, 1, 2), (5, 3, 9), (2, 11, 19)]):
        cohort = alike.cohort(ids, round)
        jobs = [Job(client) for client in cohort]
        one, two = (e.train(loop.initial(), cohort, jobs, TRAINING, Key(1, round)) for e in (loop, other))
        assert apart(one, two) < 1e-10
        if isinstance(other, StackedEngine):
            steppers |= {id(stepper) for stepper in other._steppers.values()}
        else:
            assert other._made is not None
            steppers.add(id(other._made[1]))
    assert len(steppers) < 3


def test_many_members_are_scored_some_at_a_time(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = federation.cohort(range(20))
    engine = StackedEngine(build_model("mlp", SHAPE, 5, seed=1))
    predictor = Predictor(engine.initial(), np.ones((20, 1)))
    at_once = engine.evaluate([predictor], cohort, "test")[0], engine.losses(engine.initial(), cohort, "test")
    monkeypatch.setattr("fedflux.data.cohort.PART_CLIENTS", 3)
    in_parts = engine.evaluate([predictor], cohort, "test")[0], engine.losses(engine.initial(), cohort, "test")
    np.testing.assert_array_equal(at_once[0], in_parts[0])
    for one, other in zip(at_once[1], in_parts[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
