"""The discriminant projector finds what differs, keeps to chance where nothing does, and never sees an example."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.clustering.making import describe_samples

from fedflux.clustering import CalibratedClustering
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.discriminant import (
    Scatter,
    ScatterStatistic,
    client_scatter,
    fit_discriminant,
)
from fedflux.descriptors.projector import Projector, fit_projector

Array = NDArray[np.float64]
Sample = tuple[Array, NDArray[np.int64]]
LATENT, CLASSES = 60, 5


def box(length: int = LATENT) -> Bounds:
    return Bounds(-np.ones(length, np.float32), np.ones(length, np.float32))


def base_of(length: int = LATENT) -> Projector:
    return fit_projector(box(length), length, 4 * length)


def scatter_of(base: Projector, clients: Sequence[Sample], classes: int = CLASSES) -> Scatter:
    statistic = ScatterStatistic(base, classes)
    parts = [client_scatter(statistic.add(None, torch.tensor(x), torch.tensor(y))) for x, y in clients]
    return reduce(add, parts)


def world(seed: int, clients: int = 60, size: int = 60, relabel: bool = False) -> tuple[list[Sample], Array, Array]:
    """Classes a few deviations apart in a few directions of many, of which some are loud and say nothing."""
    rng = np.random.default_rng(seed)
    loudness = np.exp(rng.uniform(-1, 2, LATENT))
    mean = np.zeros((CLASSES, LATENT))
    mean[:, :8] = 3 * rng.normal(size=(CLASSES, 8)) * loudness[:8]
    held = []
    for _ in range(clients):
        digit = rng.integers(0, CLASSES, size)
        x = mean[digit] + rng.normal(size=(size, LATENT)) * loudness
        held.append((x, (rng.permutation(CLASSES) if relabel else np.arange(CLASSES))[digit]))
    return held, mean, loudness


def separation(projector: Projector, mean: Array, loudness: Array) -> float:
    """The least squared distance of two classes, in deviations, that a projector keeps."""
    noise = (projector.components * loudness**2) @ projector.components.T
    gaps = (mean[:, None] - mean)[np.triu_indices(len(mean), 1)] @ projector.components.T
    return float(np.einsum("pi,pi->p", gaps, np.linalg.solve(noise, gaps.T).T).min())


def test_it_keeps_what_tells_classes_apart_whatever_they_are_called() -> None:
    for relabel in (False, True):
        clients, mean, loudness = world(1, relabel=relabel)
        base, loud = base_of(), loudness.astype(np.float32)
        whole = float((((mean[:, None] - mean) / loudness) ** 2).sum(axis=2)[np.triu_indices(CLASSES, 1)].min())
        found = fit_discriminant(base, scatter_of(base, clients), fit_projector(box(), 6))
        assert found.components.shape == (6, LATENT)
        assert separation(found, mean, loudness) > 0.85 * whole
        assert separation(fit_projector(Bounds(-loud, loud), 6), mean, loudness) < 0.5 * whole


def test_without_any_difference_its_directions_do_not_depend_on_who_happens_to_hold_what() -> None:
    """One class and one distribution: nothing is clear, so that nothing is chosen because clients differ in it."""
    rng = np.random.default_rng(2)
    base, paper = base_of(), fit_projector(box(), 4)
    for size in (15, 50):
        clients = [(rng.normal(size=(size, LATENT)), np.zeros(size, dtype=np.int64)) for _ in range(30)]
        found = fit_discriminant(base, scatter_of(base, clients, 1), paper)
        np.testing.assert_allclose(np.abs(found.components), np.abs(paper.components), atol=1e-6)


def dealt(rng: np.random.Generator, clients: int, size: int, classes: int, latent: int, copies: int) -> list[Sample]:
    """Clients of one distribution: classes four deviations apart, `copies` of each of `size` examples."""
    mean = np.random.default_rng(0).normal(size=(classes, latent)) * 4 / np.sqrt(latent)
    held = []
    for _ in range(clients):
        y = rng.integers(0, classes, size)
        held.append((np.repeat(mean[y] + rng.normal(size=(size, latent)), copies, axis=0), np.repeat(y, copies)))
    return held


@pytest.mark.parametrize(
    ("clients", "size", "classes", "copies", "dead"),
    [(10, 30, 10, 1, 0), (20, 20, 10, 1, 0), (10, 25, 2, 1, 0), (10, 200, 10, 1, 0), (10, 40, 10, 4, 0),
     (10, 60, 5, 8, 0), (10, 400, 10, 4, 0), (30, 200, 10, 1, 90)],
)  # fmt: skip
def test_a_federation_without_shift_stays_one_cluster(
    clients: int, size: int, classes: int, copies: int, dead: int
) -> None:
    """Few examples, copies of them, latents that never move: nowhere may choosing directions make clients differ."""
    latent, split = 120, 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        held = [
            (np.where(np.arange(latent) < dead, 0.0, x), y)
            for x, y in dealt(rng, clients, size, classes, latent, copies)
        ]
        base, statistic = base_of(latent), ScatterStatistic(base_of(latent), classes)
        parts = [client_scatter(statistic.add(None, torch.tensor(x), torch.tensor(y)), float(size)) for x, y in held]
        projector = fit_discriminant(base, reduce(add, parts), fit_projector(box(latent), 10))
        reduced = [((x - projector.mean) @ projector.components.T, y) for x, y in held]
        rows = [np.repeat(np.arange(size), copies)] * clients
        split += len(np.unique(CalibratedClustering().fit(describe_samples(reduced, classes, rows)).labels_)) > 1
    assert split == 0


def test_too_few_examples_leave_the_papers_projector() -> None:
    rng = np.random.default_rng(3)
    base, paper = base_of(), fit_projector(box(), 4)
    few = [(rng.normal(size=(40, LATENT)), np.arange(40) % 5)]
    assert fit_discriminant(base, scatter_of(base, few), paper) is paper


def test_copies_are_worth_what_their_originals_are() -> None:
    clients, _, _ = world(6, clients=1)
    base, (x, y) = base_of(), clients[0]
    statistic = ScatterStatistic(base, CLASSES)
    once = client_scatter(statistic.add(None, torch.tensor(x), torch.tensor(y)))
    thrice = client_scatter(
        statistic.add(None, torch.tensor(np.repeat(x, 3, axis=0)), torch.tensor(np.repeat(y, 3))), float(len(y))
    )
    for name in vars(once):
        np.testing.assert_allclose(getattr(thrice, name), getattr(once, name), rtol=1e-4, atol=1e-3)


def test_latents_that_never_moved_get_no_long_directions() -> None:
    rng = np.random.default_rng(5)
    base, paper = base_of(), fit_projector(box(), 10)
    clients = [(np.where(np.arange(LATENT) < 55, 0.5, x), y) for x, y in dealt(rng, 20, 100, CLASSES, LATENT, 1)]
    found = fit_discriminant(base, scatter_of(base, clients), paper)
    np.testing.assert_allclose(np.linalg.norm(found.components, axis=1), 1, atol=1e-6)


def test_scatter_is_that_of_all_examples_in_any_batches_and_split_among_any_clients() -> None:
    clients, _, _ = world(4, clients=3)
    base = base_of()
    statistic = ScatterStatistic(base, CLASSES)
    x, y = (torch.tensor(part) for part in clients[0])
    whole = client_scatter(statistic.add(None, x, y))
    pieces = client_scatter(statistic.add(statistic.add(None, x[:17], y[:17]), x[17:], y[17:]))
    z = (clients[0][0] - base.mean) @ base.components.T
    within = sum(np.cov(z[clients[0][1] == u].T, bias=True) * (clients[0][1] == u).sum() for u in range(CLASSES))
    np.testing.assert_allclose(whole.within, within, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(whole.second, z.T @ z, rtol=1e-6, atol=1e-3)
    for name in vars(whole):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-6, atol=1e-3)
    assert (whole.count, whole.groups) == (60, CLASSES)
    assert whole.nbytes == 4 * (LATENT * (LATENT + 1) + LATENT + 2)


def test_constant_latents_are_no_trouble() -> None:
    base, paper = base_of(), fit_projector(box(), 4)
    flat = [(np.ones((100, LATENT)), np.arange(100) % CLASSES)]
    assert fit_discriminant(base, scatter_of(base, flat), paper) is paper
