"""Posteriors over clusters: what moves them, and a temperature that members' tries teach."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedflux.clustering.placement.offer import CUT, rounded
from fedflux.clustering.placement.posterior import BASE, Temperature, learned, learned_offsets, votes_of

Array = NDArray[np.float64]
NONE = np.zeros(3)
EVEN = np.full(3, 1 / 3)


def posterior(temperature: Temperature, likelihood: list[float], count: float = 10.0, prior: Array = EVEN) -> Array:
    return temperature.posterior(np.array([likelihood]), np.array([count]), NONE, prior)[0]


def test_it_is_bayes_rule_at_temperature_one() -> None:
    likelihood, prior = [-10.0, -11.0, -13.0], np.array([0.2, 0.3, 0.5])
    expected = prior * np.exp(likelihood)
    np.testing.assert_allclose(posterior(Temperature(1.0), likelihood, prior=prior), expected / expected.sum())


def test_the_likeliest_cluster_has_most_of_it_and_a_prior_may_outweigh_a_little() -> None:
    found = posterior(Temperature(), [-10.0, -9.0, -30.0])
    assert found.argmax() == 1
    assert found.sum() == pytest.approx(1)
    assert posterior(Temperature(), [-10.0, -9.0, -30.0], prior=np.array([0.9, 0.05, 0.05])).argmax() == 0
    assert posterior(Temperature(), [-10.0, -9.0, -30.0], prior=np.array([0.5, 0.0, 0.5]))[1] == 0


def test_only_differences_count() -> None:
    np.testing.assert_allclose(
        posterior(Temperature(), [-1e5, -1e5 - 2, -1e5 - 3]), posterior(Temperature(), [0.0, -2.0, -3.0])
    )


def test_the_hotter_the_less_sure() -> None:
    likelihood = [0.0, -4.0, -6.0]
    by_base = [posterior(Temperature(a), likelihood).max() for a in (0.5, 1.0, 2.0, 8.0)]
    by_growth = [posterior(Temperature(1.0, c), likelihood).max() for c in (0.0, 0.01, 0.1, 1.0)]
    for found in (by_base, by_growth):
        assert all(np.diff(found) < 0)
    assert min(by_base + by_growth) > 1 / 3


def test_what_is_not_known_of_a_cluster_does_not_average_out_over_images() -> None:
    """Ten times the images with ten times the evidence: surer without error, hardly surer with it."""
    sure = {}
    for error in (0.0, 0.2):
        for n in (10, 100, 1000):
            each = np.array([[0.0, -0.2 * n]])
            found = Temperature(1.0).posterior(each, np.array([float(n)]), np.full(2, error), np.full(2, 0.5))
            sure[error, n] = found.max()
    assert sure[0.0, 1000] > 1 - 1e-12
    assert sure[0.2, 10] < sure[0.2, 100] < sure[0.2, 1000] < 0.7


def tries(rng: np.random.Generator, clients: int, heat: float) -> tuple[Array, Array, NDArray[np.int64]]:
    """Clients whose clusters follow the posterior of their evidence, which then is made `heat` times as large."""
    evidence = 2 * rng.normal(size=(clients, 3))
    chance = np.exp(evidence) / np.exp(evidence).sum(axis=1, keepdims=True)
    own = np.array([rng.choice(3, p=p) for p in chance], dtype=np.int64)
    return heat * evidence, np.full(clients, 20.0), own


def temperature_of(likelihoods: Array, counts: Array, own: NDArray[np.int64], client: NDArray[np.int64]) -> Temperature:
    return learned(likelihoods, counts, own, votes_of(counts, client), NONE, EVEN)


@pytest.mark.parametrize("heat", [0.8, 2.0, 6.0])
def test_it_learns_the_overconfidence_that_was_put_in(heat: float) -> None:
    likelihoods, counts, own = tries(np.random.default_rng(0), 3000, heat)
    found = temperature_of(likelihoods, counts, own, np.arange(3000))
    assert found.base + 20 * found.growth == pytest.approx(heat, rel=0.15)


def test_it_learns_what_grows_with_the_images() -> None:
    rng = np.random.default_rng(1)
    parts = []
    for n in (5, 50, 200):
        likelihoods, _, own = tries(rng, 1500, 1.0 + 0.08 * n)
        parts.append((likelihoods, np.full(1500, float(n)), own))
    likelihoods, counts, own = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = temperature_of(likelihoods, counts, own, np.arange(len(own)))
    assert found.growth == pytest.approx(0.08)
    assert found.base == pytest.approx(1.0, rel=0.4)


def test_little_is_learned_from_few() -> None:
    likelihoods, counts, own = tries(np.random.default_rng(2), 4, 8.0)
    few = temperature_of(likelihoods, counts, own, np.arange(4))
    assert abs(np.log(few.base / BASE)) < 1.0
    empty = np.zeros(0, dtype=np.int64)
    assert temperature_of(np.zeros((0, 3)), np.zeros(0), empty, empty) == Temperature()


def test_pieces_of_one_client_are_one_vote() -> None:
    likelihoods, counts, own = tries(np.random.default_rng(3), 12, 4.0)
    once = temperature_of(likelihoods, counts, own, np.arange(12))
    every = np.repeat(np.arange(12), 50)
    again = likelihoods[every], counts[every], own[every]
    assert temperature_of(*again, every) == once
    apart = temperature_of(*again, np.arange(600))
    assert abs(np.log(apart.base / BASE)) > abs(np.log(once.base / BASE))


def test_one_client_in_an_odd_cluster_does_not_decide_alone() -> None:
    likelihoods, counts, own = tries(np.random.default_rng(4), 100, 1.0)
    odd = np.concatenate([likelihoods, [[0.0, -200.0, -200.0]]])
    plain = temperature_of(likelihoods, counts, own, np.arange(100))
    beside = temperature_of(odd, np.append(counts, 20.0), np.append(own, 1), np.arange(101))
    assert abs(np.log(beside.base / plain.base)) < 0.3


def test_a_client_counts_once_a_size() -> None:
    counts, client = np.array([8.0, 8.0, 20.0, 8.0]), np.array([0, 0, 0, 1])
    np.testing.assert_array_equal(votes_of(counts, client), [0.5, 0.5, 1.0, 1.0])


def test_it_learns_that_one_cluster_is_thought_likelier_than_it_is() -> None:
    likelihoods, counts, own = tries(np.random.default_rng(5), 2000, BASE)
    added = np.array([0.0, 0.15, 0.0])
    vote = np.ones(2000)
    plain = learned_offsets(likelihoods, counts, own, vote, NONE, EVEN)
    found = learned_offsets(likelihoods + counts[:, None] * added, counts, own, vote, NONE, EVEN)
    assert np.abs(plain - plain.mean()).max() < 0.02
    np.testing.assert_allclose(found - found.mean(), -(added - added.mean()), atol=0.02)


def test_a_few_tries_move_offsets_little() -> None:
    likelihoods, counts, own = tries(np.random.default_rng(6), 3, 1.0)
    biased = likelihoods + counts[:, None] * np.array([0.0, 5.0, 0.0])
    found = learned_offsets(biased, counts, own, np.ones(3), NONE, EVEN)
    assert np.abs(found).max() < 1.0


def test_what_leaves_a_client_is_short_and_a_distribution() -> None:
    found = rounded(np.array([0.98, 0.019, 0.001]))
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.0])
    found = rounded(np.array([0.51234, 0.45, 0.03766]))
    assert found.sum() == pytest.approx(1, abs=0.002)
    np.testing.assert_array_equal(found, np.round(found, 3))
    many = rounded(np.full(100, 0.01))  # below the cut each, and nothing is likelier
    assert np.count_nonzero(many) == 98
    assert many.max() == pytest.approx(1 / 98)
    for count in (290, 600, 3000):  # what is not sure stays so
        even = rounded(np.full(count, 1 / count))
        assert even.sum() == pytest.approx(1)
        assert even.max() < 2 / count
    assert CUT > 0.01
