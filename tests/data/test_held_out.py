"""Clients that are held out of training: their own rows and draws, and the others as they are without them."""

import pickle
from importlib import import_module

import numpy as np
import pytest
from tests.data.making import error_of, owned, pictures

from fedflux.data import Dataset, Examples, Federation, Partition, Population, populate
from fedflux.data.export import SPLITS
from fedflux.data.lazy import Lazy
from fedflux.data.shifts.patterns import MIXES, SHIFTS

CLIENTS, UNSEEN = 5, 3


def made(shift: str, unseen: int = UNSEEN, data: Dataset | None = None, **more) -> Population:
    how = Partition(shift, 4, None if data else CLIENTS, unseen=unseen, **more)
    return populate(pictures(400, 200) if data is None else data, how)


def rows(federation: Federation, client: int, split: str) -> list[int]:
    return getattr(federation.rows[client], split).tolist()


def truth(federation: Federation) -> list[int]:
    assert federation.truth is not None
    return federation.truth.tolist()


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
@pytest.mark.parametrize("more", [{}, {"quantity_skew": 0.5}, {"data_fraction": 0.5}])
def test_held_out_clients_have_rows_of_their_own(shift, more) -> None:
    if shift == "dirichlet":
        more = {name: value for name, value in more.items() if name != "quantity_skew"}
    population = made(shift, **more)
    assert len(population.training) == CLIENTS
    assert list(population.unseen) == [5, 6, 7]
    held: dict[str, list[set[int]]] = {"train": [], "test": []}
    for k in range(CLIENTS + UNSEEN):
        own = population.everyone
        held["train"].append({*rows(own, k, "train"), *rows(own, k, "validation")})
        held["test"].append({*rows(own, k, "test")})
    for parts in held.values():
        assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(held["test"][k] for k in population.unseen)


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_the_clients_that_train_are_the_first_of_everyone(shift) -> None:
    population = made(shift)
    training, everyone = population.training, population.everyone
    assert list(training.patterns) == list(everyone.patterns)[:CLIENTS]
    for k in range(CLIENTS):
        for split in SPLITS:
            assert training.materialise(k, split).x.equal(everyone.materialise(k, split).x)
    if training.truth is not None:
        assert truth(training) == truth(everyone)[:CLIENTS]


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_patterns_are_drawn_as_without_held_out_clients(shift) -> None:
    population, without = made(shift), made(shift, unseen=0)
    assert without.everyone is without.training
    assert not without.unseen
    assert list(population.training.patterns) == list(without.training.patterns)
    if without.training.truth is not None:
        assert truth(population.training) == truth(without.training)


@pytest.mark.parametrize("shift", ["px", "py", "pxgy"])
def test_clients_that_draw_their_rows_are_those_without_held_out_ones(shift) -> None:
    population, without = (made(shift, unseen, samples_per_client=40).training for unseen in (UNSEEN, 0))
    for k in range(CLIENTS):
        for split in SPLITS:
            assert rows(population, k, split) == rows(without, k, split)


def test_who_shares_a_pattern_shares_a_number() -> None:
    """Hard shifts and banks have patterns that everyone draws from; independent draws of P(X|Y) are nobody else's."""
    for shift, patterns, shared in (
        ("px", "independent", True),
        ("pxgy", "shared", True),
        ("pxgy", "independent", False),
    ):
        everyone = made(shift, unseen=8, patterns=patterns).everyone
        numbers, contents = truth(everyone), [everyone.patterns[k].content() for k in range(len(everyone))]
        for a in range(len(everyone)):
            for b in range(a):
                assert (numbers[a] == numbers[b]) == (contents[a] == contents[b])
        assert bool(set(numbers[:CLIENTS]) & set(numbers[CLIENTS:])) == shared


def test_drifting_patterns_are_numbered_as_without_held_out_clients() -> None:
    population, without = (made("px", unseen, drift="after:2+test") for unseen in (UNSEEN, 0))
    for stage in (lambda one: one.at(1), lambda one: one.at(3), lambda one: one.at_test(4)):
        assert truth(stage(population.training)) == truth(stage(without.training))
        assert truth(stage(population.everyone))[:CLIENTS] == truth(stage(without.training))
        for a, b in ((0, 5), (1, 6), (2, 7)):
            everyone = stage(population.everyone)
            assert (truth(everyone)[a] == truth(everyone)[b]) == (everyone.patterns[a] == everyone.patterns[b])
    first, last = population.everyone.at(1), population.everyone.at_test(4)
    assert [first.patterns[k] for k in population.unseen] != [last.patterns[k] for k in population.unseen]


def test_made_on_demand_or_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = made("px+py")
    monkeypatch.setattr(import_module("fedflux.data.partition"), "EAGER", 0)
    on_demand = made("px+py")
    for name, count in (("training", CLIENTS), ("everyone", CLIENTS + UNSEEN)):
        lazy, whole = getattr(on_demand, name), getattr(at_once, name)
        assert isinstance(lazy.rows, Lazy)
        assert len(lazy) == len(whole) == count
        for copy in (lazy, pickle.loads(pickle.dumps(lazy))):
            assert truth(copy) == truth(whole)
            for k in range(count):
                assert copy.patterns[k] == whole.patterns[k]
                assert copy.materialise(k, "test").x.equal(whole.materialise(k, "test").x)


def with_strangers() -> Dataset:
    """Four clients, two of which ("hospital 1" and "hospital 3") have examples in the test part alone."""
    whole = owned([20, 20, 20, 20], clusters=[0, -1, 1, 0])
    assert whole.train.client is not None
    seen = np.isin(whole.train.client, [0, 2])
    train = Examples(whole.train.x[seen], whole.train.y[seen], whole.train.client[seen])
    return Dataset("owned", train, whole.test, whole.classes, whole.client_names, whole.client_clusters)


def test_clients_in_the_test_part_alone_are_held_out() -> None:
    data = with_strangers()
    population = made("none", 0, data)
    assert population.training.names == ("hospital 0", "hospital 2")
    assert population.everyone.names == ("hospital 0", "hospital 2", "hospital 1", "hospital 3")
    assert data.test.client is not None
    for k, number in enumerate((0, 2, 1, 3)):
        assert sorted(rows(population.everyone, k, "test")) == np.flatnonzero(data.test.client == number).tolist()
    assert [population.everyone.size(k, "train") for k in population.unseen] == [0, 0]
    assert truth(population.training) == [0, 1]
    assert truth(population.everyone) == [0, 1, -1, 0]  # nobody knows the third's; the last is in the first's


def test_own_clients_are_held_out_by_the_seed() -> None:
    data = owned([20] * 6, clusters=[0, 1, 0, 1, 2, 2])
    without = made("none", 0, data).training
    drawn = set()
    for seed in range(8):
        population = made("none", 2, data, seed=seed)
        again = made("none", 2, data, seed=seed)
        assert population.everyone.names == again.everyone.names
        assert len(population.training) == 4
        names = population.everyone.names or ()
        assert sorted(names) == [f"hospital {k}" for k in range(6)]
        assert population.training.names == names[:4] == tuple(sorted(names[:4]))
        drawn.add(names[4:])
        assert data.client_clusters is not None
        own = data.client_clusters[[int(name[-1]) for name in names]]
        assert all((a == b) == (c == d) for a, c in zip(own, truth(population.everyone), strict=True)
                   for b, d in zip(own, truth(population.everyone), strict=True))  # fmt: skip
    assert len(drawn) > 1
    same_seed = made("none", 2, data)
    for k, name in enumerate(same_seed.everyone.names or ()):
        assert rows(same_seed.everyone, k, "test") == rows(without, int(name[-1]), "test")
        assert rows(same_seed.everyone, k, "train") == rows(without, int(name[-1]), "train")


def test_what_cannot_be_held_out() -> None:
    assert "4 clients that train, 4 of them with a test part, and one must be left: give 3 or less" in error_of(
        lambda: made("none", 4, owned([5, 5, 5, 5]))
    )
    few = pictures(6, 12, classes=3)
    assert "7 clients but only 6 training examples" in error_of(
        lambda: populate(few, Partition("none", clients=4, unseen=3))
    )
    assert "-1 unseen clients: give 0 or more" in error_of(lambda: Partition(unseen=-1))
    assert "own 2 clients; 4 were asked for" in error_of(lambda: populate(with_strangers(), Partition(clients=4)))
