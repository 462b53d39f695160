"""Records of different kinds: every client is dealt one kind, and that is its true cluster."""

from dataclasses import replace

import numpy as np
import pytest

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data.partition import populate
from fedflux.data.shifts.domains import Domains
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config
from fedflux.runs.identity import folder_name, identity, shift_words

KINDS = np.array([(view, old, sex) for view in (0, 1) for old in (0, 1) for sex in (0, 1)])


def radiographs(each: int = 30, groups: bool = False) -> Dataset:
    """Inputs whose numbers are the attributes themselves, so that what a client holds can be read off."""
    parts = []
    for count in (each, each // 3):
        attributes = np.repeat(KINDS, count, axis=0)
        order = np.random.default_rng(count).permutation(len(attributes))
        x = attributes[order].astype(np.float32)
        group = np.arange(len(x)) // 2 if groups else None
        parts.append((Examples(x, np.arange(len(x)) % 2, None, group), attributes[order]))
    (train, of_train), (test, of_test) = parts
    domains = Domains(("view", "age", "sex"), of_train, of_test, tests=7)
    return Dataset("npz", train, test, 2, domains=domains)


def kinds_of(federation: Federation, client: int, split: str) -> np.ndarray:
    return np.unique(federation.inputs(client, split), axis=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("level", "clusters"), [(1, 2), (2, 4), (3, 8), (4, 8)])
def test_a_level_goes_by_as_many_attributes(level: int, clusters: int) -> None:
    federation = partition(radiographs(), Partition(level=level, clients=16, seed=5))
    truth = federation.truth
    assert truth is not None
    assert np.bincount(truth).tolist() == [16 // clusters] * clusters
    first: dict[int, list[int]] = {}
    for client in range(16):
        for split in ("train", "validation", "test"):
            held = kinds_of(federation, client, split)[:, :level]
            assert len(np.unique(held, axis=0)) == 1
            assert first.setdefault(int(truth[client]), held[0].tolist()) == held[0].tolist()
    assert len({tuple(one) for one in first.values()}) == clusters


def test_domains_are_cycled_shuffled_and_dealt_out_whole() -> None:
    whole = radiographs()
    one, two, other = (partition(whole, Partition(level=2, clients=10, seed=seed)) for seed in (5, 5, 6))
    assert one.truth is not None
    assert sorted(np.bincount(one.truth).tolist()) == [2, 2, 3, 3]
    np.testing.assert_array_equal(one.truth, two.truth)
    assert one.truth.tolist() != other.truth.tolist()  # type: ignore[union-attr]
    rows = [np.concatenate([r.train, r.validation]) for r in one.rows]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(whole.train)))
    np.testing.assert_array_equal(np.sort(np.concatenate([r.test for r in one.rows])), np.arange(len(whole.test)))
    for cluster in range(4):
        sizes = [len(rows[k]) for k in np.flatnonzero(one.truth == cluster)]
        assert max(sizes) - min(sizes) <= 1


def test_clients_may_draw_from_their_domain() -> None:
    federation = partition(radiographs(), Partition(level=3, clients=12, seed=5, samples_per_client=20))
    for client in range(12):
        assert [federation.size(client, split) for split in ("train", "validation", "test")] == [16, 4, 7]
        assert len(kinds_of(federation, client, "train")) == len(kinds_of(federation, client, "test")) == 1
    assert federation.truth is not None
    assert len(np.unique(federation.truth)) == 8


def test_groups_stay_whole_and_fewer_clients_than_domains_hold_some_of_them() -> None:
    data = radiographs(groups=True)
    federation = partition(data, Partition(level=3, clients=3, seed=5))
    assert data.train.group is not None
    for rows in federation.rows:
        assert not set(data.train.group[rows.train]) & set(data.train.group[rows.validation])
    assert federation.truth is not None
    assert len(np.unique(federation.truth)) == 3


def test_unseen_clients_are_of_a_domain_too_and_a_simulated_shift_comes_on_top() -> None:
    population = populate(radiographs(), Partition(level=1, clients=4, seed=5, unseen=2))
    assert (len(population.training), len(population.everyone)) == (4, 6)
    views = [kinds_of(population.everyone, client, "test")[:, 0] for client in range(6)]
    assert [len(np.unique(one)) for one in views] == [1] * 6
    shifted, plain = (
        partition(radiographs(), Partition(shift, level=2, clients=8, seed=5)) for shift in ("py", "none")
    )
    assert shifted.truth is not None
    assert plain.truth is not None
    together = shifted.truth[:, None] == shifted.truth[None]
    assert (plain.truth[:, None] == plain.truth[None])[together].all()


def test_what_methods_are_given_tells_no_domain() -> None:
    blind = partition(radiographs(), Partition(level=3, clients=8, seed=5)).blind()
    assert blind.dataset.domains is None
    with pytest.raises(FedfluxError, match="may not read the true clusters"):
        _ = blind.truth


def test_what_does_not_fit_is_refused() -> None:
    data = radiographs()
    assert data.domains is not None
    with pytest.raises(FedfluxError, match="deals its records by view and age and sex; dirichlet"):
        partition(data, Partition("dirichlet", level=3, clients=4))
    with pytest.raises(FedfluxError, match="240 records and 3 attributes, but domains of shape"):
        replace(data, domains=replace(data.domains, train=data.domains.train[:, :2]))
    owned = [Examples(part.x, part.y, np.zeros(len(part), dtype=np.int64)) for part in (data.train, data.test)]
    with pytest.raises(FedfluxError, match="clients and domains"):
        replace(data, train=owned[0], test=owned[1], client_names=("north",))
    assert replace(data, domains=None).checksum != data.checksum


def test_the_level_counts_where_it_says_by_what_clients_differ() -> None:
    low, high = (make_config({"dataset": "nih-cxr", "level": level}) for level in (1, 3))
    assert low.shift == "none"
    assert shift_words(low) == "none level 1"
    assert identity(low, "x") != identity(high, "x")
    assert folder_name(low, "x").startswith("nih-cxr-none1-flux")
    same = [identity(make_config({"dataset": "officehome", "level": level}), "x") for level in (1, 3)]
    assert same[0] == same[1]
