"""The discriminant projector finds what differs, keeps to chance where nothing does, and never sees an example."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.flux.bounds import Bounds
from fedflux.flux.discriminant import (
    Scatter,
    ScatterStatistic,
    client_scatter,
    fit_discriminant,
    merge_scatter,
)
from fedflux.flux.projector import Projector, fit_projector

Array = NDArray[np.float64]
LATENT, CLASSES = 60, 5


def base_of(length: int = LATENT) -> Projector:
    return fit_projector(Bounds(-np.ones(length, np.float32), np.ones(length, np.float32)), length, 4 * length)


def scatter_of(base: Projector, clients: list[tuple[Array, NDArray[np.int64]]], classes: int = CLASSES) -> Scatter:
    statistic = ScatterStatistic(base, classes)
    return merge_scatter([client_scatter(statistic.add(None, torch.tensor(x), torch.tensor(y))) for x, y in clients])


def world(
    seed: int, clients: int = 20, size: int = 60, relabel: bool = False
) -> tuple[list[tuple[Array, NDArray[np.int64]]], Array, Array]:
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
        found = fit_discriminant(base, scatter_of(base, clients), 6)
        assert found.components.shape == (6, LATENT)
        assert separation(found, mean, loudness) > 0.85 * whole
        assert separation(fit_projector(Bounds(-loud, loud), 6), mean, loudness) < 0.5 * whole


def test_without_any_difference_its_directions_do_not_depend_on_who_happens_to_hold_what() -> None:
    """One class and one distribution: nothing is clear, so that nothing is chosen because clients differ in it."""
    rng = np.random.default_rng(2)
    base = base_of()
    clients = [(rng.normal(size=(50, LATENT)), np.zeros(50, dtype=np.int64)) for _ in range(30)]
    found = fit_discriminant(base, scatter_of(base, clients, 1), 4)
    scaled = found.components / np.linalg.norm(found.components, axis=1)[:, None]
    np.testing.assert_allclose(np.abs(scaled), np.abs(base.components[:4]), atol=1e-9)


def test_too_few_examples_leave_the_papers_projector() -> None:
    rng = np.random.default_rng(3)
    base = base_of()
    found = fit_discriminant(base, scatter_of(base, [(rng.normal(size=(LATENT, LATENT)), np.arange(LATENT) % 5)]), 4)
    np.testing.assert_array_equal(found.components, base.components[:4])


def test_scatter_is_that_of_all_examples_in_any_batches_and_split_among_any_clients() -> None:
    clients, _, _ = world(4, clients=3)
    base = base_of()
    statistic = ScatterStatistic(base, CLASSES)
    x, y = (torch.tensor(part) for part in clients[0])
    whole = client_scatter(statistic.add(None, x, y))
    pieces = client_scatter(statistic.add(statistic.add(None, x[:17], y[:17]), x[17:], y[17:]))
    z = (clients[0][0] - base.mean) @ base.components.T
    within = sum(np.cov(z[clients[0][1] == u].T, bias=True) * (clients[0][1] == u).sum() for u in range(CLASSES))
    np.testing.assert_allclose(whole.within, within, atol=1e-8)
    np.testing.assert_allclose(whole.second, z.T @ z, atol=1e-8)
    for name in vars(whole):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), atol=1e-8)
    assert (whole.count, whole.groups) == (60, CLASSES)
    assert whole.nbytes == 4 * (LATENT * (LATENT + 1) + LATENT + 2)


def test_constant_latents_are_no_trouble() -> None:
    base = base_of()
    flat = [(np.ones((100, LATENT)), np.arange(100) % CLASSES)]
    assert np.isfinite(fit_discriminant(base, scatter_of(base, flat), 4).components).all()
