"""Sharing weights: 1 where nothing differs, falling as theory says, 0 where labels conflict; mixtures; heirs."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.clustering.making import Population, describe_samples, many_clients

import fedflux.algorithms.flux.lending as soft
from fedflux.algorithms.flux.lending import CUT, class_distances, heirs, mixture, sharing
from fedflux.clustering.evidence.comparison import Pool
from fedflux.errors import FedfluxError

ALPHA = 0.01


def drawn(
    *clusters: tuple[int, NDArray[np.float64] | None], seed: int = 0, world: Population | None = None
) -> tuple[Pool, Population]:
    """A pool with a group of one client for every (size, move of the class means in class deviations)."""
    world, rng = world or Population(3), np.random.default_rng(seed)
    moves = [None if move is None else np.einsum("uj,uji->ui", move, world.mix) for _, move in clusters]
    samples = [world.draw(rng, size, move=move) for (size, _), move in zip(clusters, moves, strict=True)]
    return Pool.of(describe_samples(samples, world.classes)), world


def plain() -> Population:
    """Classes with the unit matrix for covariance, so that distances are known."""
    world = Population(3, gap=6.0)
    world.mix = np.tile(np.eye(10), (world.classes, 1, 1))
    return world


def everywhere(reach: float) -> NDArray[np.float64]:
    move = np.zeros((10, 10))
    move[:, 0] = reach
    return move


def relabelled(size: int, apart: float, seed: int = 0) -> Pool:
    """Two clients of one world in which classes 0 and 1 are `apart`; the second has their labels exchanged."""
    world, rng = plain(), np.random.default_rng(seed)
    world.mean[1] = world.mean[0] + apart * world.mix[0, 0]
    first, (z, y) = world.draw(rng, size), world.draw(rng, size)
    return Pool.of(describe_samples([first, (z, np.array([1, 0, *range(2, 10)])[y])], world.classes))


def test_one_cluster_shares_with_itself() -> None:
    pool, _ = drawn((300, None))
    assert sharing(pool, ALPHA).tolist() == [[1.0]]


def test_what_is_alike_counts_in_full() -> None:
    for seed in range(10):
        assert (sharing(drawn((500, None), (500, None), seed=seed)[0], ALPHA) == 1).all()


def test_class_distances_are_right_on_average() -> None:
    apart = []
    for seed in range(100):
        pool, _ = drawn((1000, None), (1000, everywhere(0.5)), seed=seed, world=plain())
        apart.append(class_distances(pool, np.array([0]), np.array([1]))[0].diagonal())
    assert np.mean(apart) == pytest.approx(0.25, abs=0.02)


def test_noise_of_privacy_on_labels_is_taken_off() -> None:
    rng, lent = np.random.default_rng(1), []
    for seed in range(20):
        pool, _ = drawn((1000, None), (1000, None), seed=seed, world=plain())
        shaken = rng.normal(0, 30, pool.labels.shape)
        shaken -= shaken.mean(axis=1, keepdims=True)
        left = 900 * (1 - 1 / pool.labels.shape[1])
        told = Pool(**{**vars(pool), "labels": pool.labels + shaken, "label_noise": np.full(2, left)})
        blind = Pool(**{**vars(told), "label_noise": np.zeros(2)})
        lent.append([soft._reweighted(one, np.array([0]), np.array([1]))[0] for one in (told, blind)])
    known, unknown = np.mean(lent, axis=0)
    assert known < 0.2 * unknown


def test_noise_of_privacy_is_taken_off() -> None:
    rng, apart = np.random.default_rng(0), []
    for seed in range(20):
        pool, _ = drawn((1000, None), (1000, None), seed=seed, world=plain())
        variance = 0.05
        noisy = Pool(
            **{
                **vars(pool),
                "mean": pool.mean + rng.normal(0, np.sqrt(variance), pool.mean.shape),
                "noise": np.full_like(pool.noise, variance),
            }
        )
        apart.append(class_distances(noisy, np.array([0]), np.array([1]))[0].diagonal())
        blind = class_distances(Pool(**{**vars(noisy), "noise": pool.noise}), np.array([0]), np.array([1]))[0]
    scale = blind.diagonal().mean()
    assert abs(np.mean(apart)) < 0.15 * scale


def test_the_weight_is_that_of_partial_pooling() -> None:
    """δ = 0.3 deviations, 200 examples a class, l = 10: 1/(1 + 200 · 0.09 / 10), a little less for noise in labels."""
    values = []
    for seed in range(60):
        pool, _ = drawn((2000, None), (2000, everywhere(0.3)), seed=seed, world=plain())
        values.append(sharing(pool, ALPHA)[0, 1])
    assert np.mean(values) == pytest.approx(1 / (1 + 1.8), abs=0.05)


def test_weights_fall_with_distance_and_are_cut() -> None:
    pool, _ = drawn((800, None), *[(800, everywhere(reach)) for reach in (0.3, 0.6, 1.0, 3.0)], world=plain())
    weights = sharing(pool, ALPHA)[0]
    assert weights[0] == 1
    assert (np.diff(weights) < 0).all() or weights[-2] == weights[-1] == 0
    assert weights[-1] == 0
    assert (weights[weights > 0] >= CUT).all()


def test_a_larger_lender_counts_more_in_all_and_less_each() -> None:
    pool, _ = drawn((1000, None), (500, everywhere(0.4)), (4000, everywhere(0.4)), world=plain())
    small, large = sharing(pool, ALPHA)[0, 1:]
    assert small > large > 0
    assert 4000 * large > 500 * small


def test_exchanged_labels_are_never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = relabelled(1000, 1.2)
    assert sharing(pool, ALPHA)[0, 1] == sharing(pool, ALPHA)[1, 0] == 0
    monkeypatch.setattr(soft, "MATCH", -np.inf)  # by distance alone they would share: only two classes moved, not far
    assert sharing(pool, ALPHA)[0, 1] > CUT


def test_a_move_as_far_without_exchange_is_shared() -> None:
    move = np.zeros((10, 10))
    move[:2, 0] = 1.2
    pool, _ = drawn((1000, None), (1000, move), world=plain())
    assert sharing(pool, ALPHA)[0, 1] > CUT


def test_label_shares_count_too() -> None:
    world, rng = Population(3), np.random.default_rng(0)
    tilts = [np.ones(10), np.linspace(0.8, 1.2, 10), np.linspace(0.4, 1.6, 10), np.r_[np.ones(5), np.zeros(5)]]
    samples = [world.draw(rng, 1000, shares=tilt / tilt.sum()) for tilt in tilts]
    weights = sharing(Pool.of(describe_samples(samples, 10)), ALPHA)[0]
    assert 1 >= weights[1] > weights[2] > weights[3]
    assert weights[3] == 0


def test_no_class_in_common_is_nothing_to_share() -> None:
    world, rng = Population(3), np.random.default_rng(0)
    halves = [np.r_[np.ones(5), np.zeros(5)] / 5, np.r_[np.zeros(5), np.ones(5)] / 5]
    pool = Pool.of(describe_samples([world.draw(rng, 300, shares=half) for half in halves], 10))
    assert sharing(pool, ALPHA).tolist() == [[1, 0], [0, 1]]


def test_many_clusters_share_with_their_like() -> None:
    truth = np.repeat(np.arange(40), 2)
    pool = Pool.of(many_clients(1, truth, reach=5.0, changed=8))
    assert len(pool) == 80
    weights = sharing(pool, ALPHA)
    pairs = np.arange(0, 80, 2)
    assert (weights[pairs, pairs + 1] == 1).mean() > 0.9
    others = truth[:, None] != truth
    assert (weights[others] == 0).mean() > 0.99


def test_too_many_clusters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft, "LIMIT", 1)
    with pytest.raises(FedfluxError, match="up to 1 clusters, and there are 2"):
        sharing(drawn((100, None), (100, None))[0], ALPHA)


def test_heirs_of_the_same_clusters_are_those_clusters() -> None:
    pool, _ = drawn((500, None), (500, everywhere(0.8)), (500, everywhere(2.0)))
    assert ((heirs(pool, pool, ALPHA) > 0) == np.eye(3, dtype=bool)).all()


def test_an_heir_of_two_goes_on_from_both_by_size() -> None:
    old, _ = drawn((400, None), (800, None), (500, everywhere(3.0)))
    new, _ = drawn((600, None), seed=1)
    shares = heirs(new, old, ALPHA)[0]
    assert shares[2] == 0
    assert shares[1] / shares[0] == pytest.approx(2.0)


def test_what_is_like_nothing_goes_on_from_the_nearest() -> None:
    old, _ = drawn((500, None), (500, everywhere(3.0)))
    new, _ = drawn((500, everywhere(5.0)), (500, everywhere(-1.0)), seed=1)
    assert heirs(new, old, ALPHA).tolist() == [[0, 1], [1, 0]]


def test_a_clear_choice_is_one_model() -> None:
    distances = np.array([[9.0, 250.0, 400.0], [300.0, 12.0, 500.0]])
    assert mixture(distances, 10).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_tie_is_shared_and_far_ones_left_out() -> None:
    weights = mixture(np.array([[10.0, 10.0, 900.0]]), 10)
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0.0]])


def test_beyond_every_cluster_the_mixture_spreads() -> None:
    near, far = mixture(np.array([[10.0, 60.0], [1000.0, 1050.0]]), 10)
    assert near[0] > 0.9
    assert far[0] < 0.55
    np.testing.assert_allclose([near.sum(), far.sum()], 1)
