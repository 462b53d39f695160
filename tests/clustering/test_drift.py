"""Has a client drifted? How often the test is wrong, what adds up, and where clusters go on from."""

import numpy as np
import pytest
from scipy.stats import binomtest
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import Clusterer, find_clusters, with_centroids
from fedflux.clustering.change.drift import (
    History,
    add_descriptors,
    alarms,
    descend,
    drifted,
    empty_descriptors,
    log_change,
    stronger,
    with_past,
)
from fedflux.clustering.evidence.comparison import Pool
from fedflux.descriptors.descriptor import Descriptors, effective_counts
from fedflux.descriptors.wire import from_arrays, put_arrays, to_arrays

WORLD = Population(3)
MOVE = np.zeros_like(WORLD.mean)
MOVE[:3] = 1.5


def clients(rng: np.random.Generator, count: int, size: int, move: np.ndarray | None = None) -> Descriptors:
    return describe_samples([WORLD.draw(rng, size, move=move) for _ in range(count)], 10)


def validated(rng: np.random.Generator, count: int, size: int) -> Descriptors:
    """Clients with validation parts, which tell how far from their cluster those who belong to it lie."""
    held = [WORLD.draw(rng, size // 4)[0] for _ in range(count)]
    return describe_samples([WORLD.draw(rng, size) for _ in range(count)], 10, validation=held)


@pytest.mark.parametrize("size", [60, 300])
def test_clients_that_stay_are_said_to_drift_no_more_often_than_stated(size: int) -> None:
    rng, count = np.random.default_rng(size), 200
    alarms = drifted(clients(rng, count, 3 * size), clients(rng, count, size), 0.05).sum()
    assert binomtest(int(alarms), count, 0.05, "greater").pvalue > 0.001
    assert alarms <= 0.05 * count + 10


def test_clients_whose_classes_moved_or_whose_labels_changed_are_found() -> None:
    rng = np.random.default_rng(1)
    old = clients(rng, 20, 600)
    assert drifted(old, clients(rng, 20, 200, MOVE), 0.01).all()
    shares = np.array([0.0] + [1 / 9] * 9)
    fewer = describe_samples([WORLD.draw(rng, 480, shares) for _ in range(20)], 10)
    assert drifted(old, fewer, 0.01).all()


def test_each_client_is_compared_with_itself() -> None:
    rng = np.random.default_rng(2)
    samples = [WORLD.draw(rng, 300, move=MOVE if k % 2 else None) for k in range(6)]
    later = [WORLD.draw(rng, 300, move=MOVE if k in (1, 2, 3) else None) for k in range(6)]
    found = drifted(describe_samples(samples, 10), describe_samples(later, 10), 0.01)
    assert found.tolist() == [False, False, True, False, False, True]


def watched(seed: int, count: int, rounds: int, speed: float, chunk: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Clients whose classes move by `speed` deviations a round, watched by both tests: the round in which each was
    first said to drift (`rounds` + 1: never), and how many were by their newest chunk alone.
    """
    rng = np.random.default_rng(seed)
    covariance = np.einsum("uji,ujk->uik", WORLD.mix, WORLD.mix).mean(axis=0)
    vector = rng.normal(size=10)
    step = np.tile(speed * vector / np.sqrt(vector @ np.linalg.solve(covariance, vector)), (10, 1))
    told = clients(rng, count, 3 * chunk)
    history, found, plain = History.of(told), np.full(count, rounds + 1), np.zeros(count, dtype=bool)
    for r in range(1, rounds + 1):
        new = clients(rng, count, chunk, r * step)
        history = history.grown(new)
        plain |= drifted(told, new, 0.01 / count)
        said = alarms(stronger(log_change(told, new), history.log_change()), 0.01)
        found = np.where(said, np.minimum(found, r), found)
        told, history = add_descriptors(told, new), history.folded()
    return found, plain


def test_slow_drift_is_found_that_hides_in_the_running_average() -> None:
    found, by_chunk = watched(50, 20, 40, 0.02)
    assert (found <= 40).mean() >= 0.5
    assert by_chunk.mean() < 0.2


def test_without_drift_few_rounds_have_an_alarm_however_many_clients_there_are() -> None:
    rng, rounds, said = np.random.default_rng(51), 20, 0
    told = clients(rng, 100, 180)
    history = History.of(told)
    for _ in range(rounds):
        new = clients(rng, 100, 60)
        history = history.grown(new)
        said += int(alarms(stronger(log_change(told, new), history.log_change()), 0.01).any())
        told, history = add_descriptors(told, new), history.folded()
    assert said <= 1


def test_alarms_hold_over_all_clients_together() -> None:
    rng = np.random.default_rng(9)
    false = [bool(alarms(np.log(rng.random(100)), 0.05).any()) for _ in range(1000)]
    assert binomtest(sum(false), 1000, 0.05, "greater").pvalue > 0.001
    log_p = np.log(np.array([0.004, 0.5, 0.001, 0.9]))
    assert alarms(log_p, 0.01).tolist() == [True, False, True, False]
    assert alarms(log_p, 0.003).tolist() == [False] * 4
    assert alarms(np.zeros(0), 0.01).tolist() == []


def test_a_history_folds_when_what_is_recent_weighs_as_much_as_the_first() -> None:
    rng = np.random.default_rng(10)
    first, chunks = clients(rng, 2, 100), [clients(rng, 2, 60) for _ in range(3)]
    history = History.of(first)
    assert (history.recent.effective == 0).all()
    assert (history.log_change() == 0).all()
    assert history.grown(chunks[0]).folded().first is first
    history = history.grown(chunks[0]).grown(chunks[1]).folded()
    assert history.first.count[:, 0].tolist() == [220, 220]
    assert history.recent.count[:, 0].tolist() == [0, 0]
    history = history.grown(chunks[2])
    for name in ("count", "mean", "effective"):
        np.testing.assert_allclose(getattr(history.recent, name), getattr(chunks[2], name), rtol=1e-6)
    np.testing.assert_array_equal(add_descriptors(first, empty_descriptors(first)).count, first.count)


def test_descriptors_of_two_halves_add_up_to_that_of_the_whole() -> None:
    rng = np.random.default_rng(4)
    z, y = WORLD.draw(rng, 400, np.array([0.3, 0.3, 0.4] + [0.0] * 7))
    rows = np.concatenate([np.repeat(np.arange(50), 3), np.arange(50, 150), np.repeat(np.arange(150, 225), 2)])
    cut = 250
    halves = [describe_samples([(z[part], y[part])], 10, [rows[part]]) for part in (slice(None, cut), slice(cut, None))]
    whole, added = describe_samples([(z, y)], 10, [rows]), add_descriptors(*halves)
    np.testing.assert_array_equal(added.count, whole.count)
    np.testing.assert_allclose(added.mean, whole.mean, atol=1e-5)
    np.testing.assert_allclose(added.spread, whole.spread, rtol=0.01)
    np.testing.assert_allclose(added.correlation, whole.correlation, atol=0.03)
    np.testing.assert_allclose(added.effective[0], effective_counts(rows, y, 10), rtol=1e-5)
    alone = add_descriptors(halves[0], halves[0].take([0]))
    np.testing.assert_allclose(alone.mean, halves[0].mean, atol=1e-6)


def test_rows_of_the_wire_form_are_exchanged() -> None:
    rng = np.random.default_rng(5)
    old, new = clients(rng, 4, 100), clients(rng, 2, 80)
    put = from_arrays(put_arrays(to_arrays(old), np.array([3, 1]), to_arrays(new)))
    for row, (source, index) in enumerate([(old, 0), (new, 1), (old, 2), (new, 0)]):
        np.testing.assert_array_equal(put.mean[row], source.mean[index])
        np.testing.assert_array_equal(put.count[row], source.count[index])


def test_a_cluster_goes_on_from_the_one_it_equals_or_else_from_the_nearest() -> None:
    rng = np.random.default_rng(6)
    old = Pool.of(clients(rng, 1, 900)).join(Pool.of(clients(rng, 1, 900, MOVE)))
    new = [
        clients(rng, 1, 400, MOVE),
        clients(rng, 1, 400),
        clients(rng, 1, 400, 1.4 * MOVE),
        clients(rng, 1, 400, -MOVE),
    ]
    found, same = descend(Pool.of(new[0]).join(Pool.of(new[1])).join(Pool.of(new[2])).join(Pool.of(new[3])), old, 0.01)
    assert found.tolist() == [1, 0, 1, 0]
    assert same.tolist() == [True, True, False, False]


def test_the_nearest_is_not_the_one_with_the_fewest_examples() -> None:
    rng = np.random.default_rng(7)
    near, far = clients(rng, 1, 5000, 0.8 * MOVE), clients(rng, 1, 60, -2 * MOVE)
    found, same = descend(Pool.of(clients(rng, 1, 2000, MOVE)), Pool.of(far).join(Pool.of(near)), 0.01)
    assert (found.tolist(), same.tolist()) == ([1], [False])


def test_past_clusters_are_places_like_others() -> None:
    rng = np.random.default_rng(8)
    apart = 4 * MOVE
    now = validated(rng, 4, 400)
    before = with_centroids(clients(rng, 4, 400, apart), np.array([0, 0, 1, 1]))
    found = find_clusters(now, Clusterer())
    both = with_past(found, now, before, np.array([0]))
    assert len(both.centroids) == len(both.pool) == len(both.marginals.mean) == 2
    assert not both.judge(clients(rng, 3, 300, apart).label_free(), 0.001).novel.any()
    assert both.judge(clients(rng, 3, 300, -apart).label_free(), 0.001).novel.all()
    newcomers = [clients(rng, 3, 300), clients(rng, 3, 300, apart)]
    for calibrated in (True, False):
        assert [both.place(one, calibrated).tolist() for one in newcomers] == [[0] * 3, [1] * 3]
        placed = [both.place_unlabelled(one.label_free(), calibrated)[0].tolist() for one in newcomers]
        assert placed == [[0] * 3, [1] * 3]
