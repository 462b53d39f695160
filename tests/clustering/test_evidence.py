"""The tests behind calibrated clustering: their null, their power, and how moments pool."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2
from scipy.stats import f as fisher
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import CalibratedClustering
from fedflux.clustering.evidence import comparison as evidence
from fedflux.clustering.evidence.comparison import Pool, compare, log_splits
from fedflux.clustering.evidence.label_counts import log_labels
from fedflux.clustering.variation import Variation

FIRST, SECOND = np.array([0]), np.array([1])


def same_pairs(size: int, repeats: int = 60, shares=None, rows=None):
    """Evidence of pairs of clients that hold one distribution."""
    found = []
    for r in range(repeats):
        rng = np.random.default_rng(r)
        world = Population(r % 5)
        clients = [world.draw(rng, size, shares) for _ in range(2)]
        found.append(compare(Pool.of(describe_samples(clients, 10)), FIRST, SECOND, Variation(floor=0.0)))
    return found


def too_many(hits: int, trials: int, level: float) -> bool:
    """Whether so many rejections at a level would be a one in 10,000 accident."""
    return bool(binom.sf(hits - 1, trials, level) < 1e-4)


@pytest.mark.parametrize("size", [2000, 192, 40])
def test_the_null_is_not_rejected_more_often_than_stated(size: int) -> None:
    """Finite samples, unlike class covariances: no level is exceeded, down to four examples a class."""
    found = same_pairs(size)
    classes = np.concatenate([e.classes[e.classes < 0] for e in found])
    for level in (0.05, 0.01):
        assert not too_many(int((classes < np.log(level)).sum()), len(classes), level)
        for name in ("joint", "labels", "total"):
            values = np.array([getattr(e, name)[0] for e in found])
            assert not too_many(int((values < np.log(level)).sum()), len(values), level)


def test_the_null_is_not_hopelessly_cautious() -> None:
    classes = np.concatenate([e.classes[e.classes < 0] for e in same_pairs(2000)])
    assert (classes < np.log(0.05)).mean() > 0.01
    assert (classes < np.log(0.5)).mean() > 0.3


def test_copies_are_counted_once_through_the_effective_count() -> None:
    """Clients that repeat their examples must not look different from each other; without Kish's count they do."""
    fair, nominal = [], []
    for r in range(30):
        rng = np.random.default_rng(r)
        world = Population(r % 3)
        clients, rows = [], []
        for _ in range(2):
            z, y = world.draw(rng, 300)
            chosen = np.concatenate([np.arange(300), rng.integers(300, size=900)])
            clients.append((z[chosen], y[chosen]))
            rows.append(chosen)
        fair.append(compare(Pool.of(describe_samples(clients, 10, rows)), FIRST, SECOND).total[0])
        nominal.append(compare(Pool.of(describe_samples(clients, 10)), FIRST, SECOND).total[0])
    assert not too_many(int((np.array(fair) < np.log(0.05)).sum()), 30, 0.05)
    assert np.median(nominal) < np.log(1e-3)


def test_many_copies_of_few_examples_are_few_examples() -> None:
    """50 distinct examples, 96 copies of each: freedom and precision follow the distinct ones, so nothing splits."""
    rng, world = np.random.default_rng(0), Population(0)
    clients, rows = [], []
    for _ in range(6):
        z, y = world.draw(rng, 50)
        chosen = np.tile(np.arange(50), 96)
        clients.append((z[chosen], y[chosen]))
        rows.append(chosen)
    assert CalibratedClustering().fit(describe_samples(clients, 10, rows)).labels_.max() == 0


@pytest.mark.parametrize(("classes", "size"), [(1, 6), (1, 12), (3, 15)])
def test_few_classes_do_not_lend_each_other_freedom_they_lack(classes: int, size: int) -> None:
    split = 0
    for seed in range(60):
        rng, world = np.random.default_rng(seed), Population(seed % 5, classes)
        pair = describe_samples([world.draw(rng, size) for _ in range(2)], classes)
        split += CalibratedClustering().fit(pair).labels_.max()
    assert not too_many(int(split), 60, 0.01)


def test_strongly_correlated_latents_survive_the_bytes() -> None:
    """Three factors and a little noise: correlations near one, whose rounding must not fake a difference."""
    rejected = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        loading = rng.normal(size=(3, 10))
        clients = []
        for _ in range(2):
            z = rng.normal(size=(800, 3)) @ loading + 0.05 * rng.normal(size=(800, 10))
            clients.append((z, rng.integers(2, size=800)))
        rejected += compare(Pool.of(describe_samples(clients, 2)), FIRST, SECOND).total[0] < np.log(0.01)
    assert not too_many(int(rejected), 20, 0.01)


def test_the_joint_test_keeps_its_tail_with_few_samples() -> None:
    """Exact draws from the null law of the class statistics: one in a thousand stays one in a thousand."""
    rng = np.random.default_rng(0)
    p = rng.uniform(size=(40_000, 10))
    joint = evidence._log_joint(np.log(p), np.ones(p.shape, dtype=bool), 10)
    for level in (0.05, 0.01, 0.001):
        assert (joint < np.log(level)).mean() == pytest.approx(level, rel=0.35)


def test_rare_labels_do_not_condemn_a_small_client() -> None:
    big, small = np.array([[9990.0, 3.0, 7.0]]), np.array([[9.0, 1.0, 0.0]])
    assert log_labels(big, small, np.zeros(1), 0.0)[0] > np.log(1e-6)
    assert log_labels(big, np.array([[2.0, 8.0, 0.0]]), np.zeros(1), 0.0)[0] < np.log(1e-6)


def test_rare_labels_are_at_their_level() -> None:
    rng, none = np.random.default_rng(0), np.zeros(20_000)
    for first, second, shares in ((48, 200, [0.3, 0.3, 0.32, 0.05, 0.03]), (30, 3000, [0.95, 0.02, 0.02, 0.01])):
        small, large = (rng.multinomial(size, shares, len(none)).astype(np.float64) for size in (first, second))
        found = log_labels(small, large, none, 0.0)
        for level in (0.05, 0.01, 0.001):
            assert (found < np.log(level)).mean() < 1.3 * level


def test_labels_that_a_large_group_never_shows_part_a_small_client_from_it() -> None:
    large, small = np.array([[100.0, 100.0, 0.0, 0.0]]), np.array([[20.0, 18.0, 5.0, 5.0]])
    plain, varied = (log_labels(small, large, np.zeros(1), 0.0, np.full(1, rho**2))[0] for rho in (0.0, 0.03))
    assert plain == pytest.approx(np.log(2) + 10 * np.log(48 / 248), abs=0.01)
    assert plain < varied < np.log(1e-4)


def test_one_moved_class_is_found_and_named() -> None:
    rng, world = np.random.default_rng(0), Population(0)
    move = np.zeros_like(world.mean)
    move[3] = 0.8 * world.mix[3].T @ np.ones(10) / np.sqrt(10)  # Mahalanobis distance 0.8
    clients = [world.draw(rng, 4000), world.draw(rng, 4000, move=move)]
    found = compare(Pool.of(describe_samples(clients, 10)), FIRST, SECOND)
    assert found.classes[0].argmin() == 3
    assert found.total[0] < np.log(1e-6)
    assert np.sort(found.classes[0])[1] > np.log(1e-3)
    assert found.effect[0, 3] == pytest.approx(0.8, abs=0.25)


def test_a_class_missing_on_one_side_is_left_to_the_label_counts() -> None:
    rng, world = np.random.default_rng(1), Population(1)
    without = np.array([0.0] + [1 / 9] * 9)
    clients = [world.draw(rng, 200), world.draw(rng, 200, shares=without)]
    found = compare(Pool.of(describe_samples(clients, 10)), FIRST, SECOND)
    assert found.classes[0, 0] == 0
    assert found.labels[0] < np.log(1e-3)
    assert found.joint[0] > np.log(1e-3)


def test_label_counts_are_pearsons_chi_square() -> None:
    rng, world = np.random.default_rng(2), Population(2, classes=4)
    clients = [world.draw(rng, 400), world.draw(rng, 300, shares=np.array([0.4, 0.2, 0.2, 0.2]))]
    table = np.array([np.bincount(y, minlength=4) for _, y in clients]).astype(float)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    found = compare(Pool.of(describe_samples(clients, 4)), FIRST, SECOND, Variation(floor=0.0))
    assert found.labels[0] == pytest.approx(chi2.logsf(statistic, 3), rel=1e-3)


def test_class_statistic_is_hotellings_with_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "CORRELATION_PRIOR", 1e-9)
    monkeypatch.setattr(evidence, "VARIANCE_PRIOR", 1e-9)
    rng, world = np.random.default_rng(3), Population(3, classes=2, length=3)
    (z, y), (w, v) = world.draw(rng, 500), world.draw(rng, 400)
    found = compare(Pool.of(describe_samples([(z, y), (w, v)], 2)), FIRST, SECOND, Variation(floor=0.0))
    for u in range(2):
        a, b = z[y == u], w[v == u]
        freedom = len(a) + len(b) - 2
        pooled = ((len(a) - 1) * np.cov(a.T) + (len(b) - 1) * np.cov(b.T)) / freedom
        gap = a.mean(0) - b.mean(0)
        t2 = gap @ np.linalg.solve(pooled, gap) / (1 / len(a) + 1 / len(b))
        exact = fisher.logsf(t2 * (freedom - 2) / (3 * freedom), 3, freedom - 2)
        assert found.classes[0, u] == pytest.approx(exact, rel=0.05)


def test_pooling_clients_equals_describing_their_union() -> None:
    rng, world = np.random.default_rng(4), Population(4)
    clients = [world.draw(rng, size) for size in (300, 500, 200)]
    pooled = Pool.of(describe_samples(clients, 10)).merge(np.array([0, 0, 1]))
    union = (np.concatenate([clients[0][0], clients[1][0]]), np.concatenate([clients[0][1], clients[1][1]]))
    whole = Pool.of(describe_samples([union, clients[2]], 10))
    np.testing.assert_allclose(pooled.mean, whole.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pooled.weight, whole.weight)
    np.testing.assert_allclose(pooled.labels, whole.labels)
    assert pooled.members.tolist() == [2, 1]
    within = [np.cov(z[y == 2].T, ddof=0) for z, y in clients[:2]]
    sizes = [(y == 2).sum() for _, y in clients[:2]]
    np.testing.assert_allclose(pooled.covariance[0, 2], np.average(within, axis=0, weights=sizes), atol=0.15)


def test_known_noise_enters_the_denominator() -> None:
    """Noise of known variance on the means makes false differences, unless the test is told."""
    told, untold = [], []
    for r in range(20):
        rng = np.random.default_rng(r)
        world = Population(r % 3)
        clean = describe_samples([world.draw(rng, 1000) for _ in range(2)], 10)
        noisy = replace(clean, mean=clean.mean + rng.normal(0, 1.0, size=clean.mean.shape))
        untold.append(compare(Pool.of(noisy), FIRST, SECOND).total[0])
        known = replace(noisy, noise=np.full(clean.noise.shape, 1.0))
        told.append(compare(Pool.of(known), FIRST, SECOND).total[0])
        assert compare(Pool.of(known), FIRST, SECOND).trifle[0] >= told[-1]
    assert np.median(untold) < np.log(1e-6)
    assert not too_many(int((np.array(told) < np.log(0.05)).sum()), 20, 0.05)


def test_the_floor_forgives_trifles_and_only_trifles() -> None:
    rng, world = np.random.default_rng(5), Population(5, classes=3, length=4)
    move = np.einsum("uij,j->ui", np.swapaxes(world.mix, 1, 2), np.full(4, 0.5)) * 0.03
    small, large = (
        describe_samples([world.draw(rng, 400_000), world.draw(rng, 400_000, move=factor * move)], 3)
        for factor in (1, 10)
    )
    found = compare(Pool.of(small), FIRST, SECOND)
    assert found.total[0] < np.log(1e-6)
    assert found.trifle[0] > np.log(0.01)
    assert compare(Pool.of(large), FIRST, SECOND).trifle[0] < np.log(1e-6)
    assert CalibratedClustering().fit(small).labels_.tolist() == [0, 0]
    assert CalibratedClustering().fit(large).labels_.tolist() == [0, 1]


def test_extreme_evidence_stays_ordered_and_finite() -> None:
    rng, world = np.random.default_rng(6), Population(6)
    move = np.ones_like(world.mean)
    clients = [world.draw(rng, 4000), world.draw(rng, 4000, move=30 * move), world.draw(rng, 4000, move=90 * move)]
    found = compare(Pool.of(describe_samples(clients, 10)), np.array([0, 0]), np.array([1, 2])).total
    assert np.isfinite(found).all()
    assert found[1] < found[0] < -600


def test_splits_count_the_ways_to_part_a_union() -> None:
    ways = np.exp(log_splits(np.array([1.0, 2.0, 1.0, 5.0]), np.array([1.0, 2.0, 4.0, 5.0])))
    np.testing.assert_allclose(ways, [1, 3 * 2, 5 * 2, 126 * 5])
