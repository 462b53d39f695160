"""S1 to S3 against numpy on raw latents, and the descriptor record."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflux.clustering.scaling import BlockScaler
from fedflux.descriptors.bounds import Bounds, LatentRange, client_bounds, merge_bounds, scalar_bounds
from fedflux.descriptors.descriptor import Descriptors, effective_counts, join_descriptors, make_descriptors
from fedflux.descriptors.moments import MomentStatistic, moments
from fedflux.descriptors.projector import Projector, fit_projector
from fedflux.descriptors.wire import client_bytes, from_arrays, over_the_wire, to_arrays
from fedflux.errors import FedfluxError

RNG = np.random.default_rng(0)


def sums_in_chunks(statistic, latents, labels, size):
    so_far = None
    for begin in range(0, len(latents), size):
        chunk = None if labels is None else torch.tensor(labels[begin : begin + size])
        so_far = statistic.add(so_far, torch.tensor(latents[begin : begin + size]), chunk)
    return so_far


def identity_projector(length: int) -> Projector:
    return Projector(np.zeros(length), np.eye(length))


def test_bounds_are_the_extremes_over_batches_and_clients() -> None:
    clients = [RNG.normal(size=(50, 7)).astype(np.float32) for _ in range(3)]
    found = [client_bounds(sums_in_chunks(LatentRange(), x, None, 8)) for x in clients]
    merged = merge_bounds(found)
    everything = np.concatenate(clients)
    np.testing.assert_array_equal(merged.low, everything.min(axis=0))
    np.testing.assert_array_equal(merged.high, everything.max(axis=0))
    scalar = scalar_bounds(merged)
    assert np.all(scalar.low == 0)
    np.testing.assert_allclose(scalar.high, 1.02 * everything.max(), rtol=1e-6)


def test_projector_is_the_pca_of_the_synthetic_points() -> None:
    bounds = Bounds(np.zeros(30, np.float32), np.linspace(1, 3, 30, dtype=np.float32))
    projector = fit_projector(bounds, components=10)
    synthetic = np.random.default_rng(1).random((200, 30)) * np.linspace(1, 3, 30)
    covariance = np.cov(synthetic.T)
    values = np.sort(np.linalg.eigvalsh(covariance))[::-1][:10]
    projected = projector.project(torch.tensor(synthetic)).numpy()
    np.testing.assert_allclose(projector.components @ projector.components.T, np.eye(10), atol=1e-10)
    np.testing.assert_allclose(projected.var(axis=0, ddof=1), values, rtol=1e-5)
    np.testing.assert_allclose(projected.mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize(("width", "live"), [(400, 400), (400, 6), (30, 30), (30, 0)])
def test_projector_is_orthonormal_whatever_is_dead(width: int, live: int) -> None:
    """From either matrix of products, and where too few latents vary for those."""
    high = np.where(np.arange(width) < live, 1.0 + np.arange(width) / width, 0.0).astype(np.float32)
    projector = fit_projector(Bounds(np.zeros(width, np.float32), high))
    np.testing.assert_allclose(projector.components @ projector.components.T, np.eye(10), atol=1e-12)
    synthetic = high * np.random.default_rng(1).random((200, width))
    expected = np.linalg.svd(synthetic - synthetic.mean(axis=0), full_matrices=False)[2][: min(10, live)]
    alike = np.abs((projector.components[: min(10, live)] * expected).sum(axis=1))
    np.testing.assert_allclose(alike, 1, atol=1e-9)


def test_projector_is_the_same_for_every_client_and_fits_short_latents() -> None:
    bounds = Bounds(np.zeros(4, np.float32), np.ones(4, np.float32))
    first, second = fit_projector(bounds), fit_projector(bounds)
    np.testing.assert_array_equal(first.components, second.components)
    assert len(first) == 4
    flat = fit_projector(Bounds(np.ones(5, np.float32), np.ones(5, np.float32)))
    assert np.isfinite(flat.components).all()


@given(n=st.integers(1, 60), chunk=st.integers(1, 20), classes=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_moments_match_numpy_on_raw_latents(n: int, chunk: int, classes: int) -> None:
    rng = np.random.default_rng(n * 100 + chunk)
    latents, labels = rng.normal(3.0, 2.0, size=(n, 5)), rng.integers(classes, size=n)
    projector = Projector(rng.normal(size=5), rng.normal(size=(3, 5)))
    z = (latents - projector.mean) @ projector.components.T
    found = moments(sums_in_chunks(MomentStatistic(projector, classes), latents, labels, chunk))
    for group in range(classes + 1):
        members = z if group == 0 else z[labels == group - 1]
        assert found.count[group] == len(members)
        if len(members):
            np.testing.assert_allclose(found.mean[group], members.mean(axis=0), atol=1e-8)
            np.testing.assert_allclose(found.covariance[group], np.cov(members.T, ddof=0), atol=1e-8)


@pytest.mark.parametrize("labelled", [True, False])
def test_many_clients_at_once_are_what_each_is_alone(labelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflux.descriptors.moments.EXPANDED", {"cpu": 8 * 73 * 50})  # fifty examples
    rng = np.random.default_rng(3)
    sizes = [7, 60, 1, 20, 30, 5]
    latents = torch.from_numpy(rng.normal(size=(sum(sizes), 8)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 3, sum(sizes))) if labelled else None
    ends = np.cumsum(sizes).tolist()
    statistic = MomentStatistic(identity_projector(8), 3 if labelled else None)
    together, ranges = statistic.of_each(latents, labels, ends), LatentRange().of_each(latents, labels, ends)
    for k, (begin, end) in enumerate(pairwise([0, *ends])):
        one = latents[begin:end], None if labels is None else labels[begin:end]
        torch.testing.assert_close(together[k].table, statistic.add(None, *one).table, rtol=1e-12, atol=1e-12)
        assert all(torch.equal(a, b) for a, b in zip(ranges[k], LatentRange().add(None, *one), strict=True))


def test_no_spread_is_exactly_none() -> None:
    latents = np.full((7, 3), 1234.567)
    found = moments(sums_in_chunks(MomentStatistic(identity_projector(3), None), latents, None, 3))
    assert np.all(found.covariance == 0)


def test_label_free_moments_equal_the_marginal_part_and_need_no_labels() -> None:
    latents, labels = RNG.normal(size=(40, 6)), RNG.integers(3, size=40)
    projector = identity_projector(6)
    labelled = moments(sums_in_chunks(MomentStatistic(projector, 3), latents, labels, 16))
    unlabelled = moments(sums_in_chunks(MomentStatistic(projector, None), latents, None, 16))
    np.testing.assert_array_equal(labelled.mean[:1], unlabelled.mean)
    np.testing.assert_array_equal(labelled.covariance[:1], unlabelled.covariance)


def sample_descriptors(clients: int = 3, classes: int = 2, length: int = 4, full: bool = False) -> Descriptors:
    parts = []
    for k in range(clients):
        latents, labels = RNG.normal(k, 1, size=(90, length)), RNG.integers(classes, size=90)
        sums = sums_in_chunks(MomentStatistic(identity_projector(length), classes), latents, labels, 30)
        parts.append(moments(sums))
    return make_descriptors(parts, [p.count.astype(float) for p in parts], full_covariance=full)


def test_vector_is_the_papers_concatenation() -> None:
    descriptors = sample_descriptors()
    assert descriptors.vectors().shape == (3, 2 * (2 + 1) * 4)
    expected = np.concatenate([np.concatenate([descriptors.mean[0, g], descriptors.spread[0, g]]) for g in range(3)])
    np.testing.assert_allclose(descriptors.vectors()[0], expected)
    np.testing.assert_allclose(descriptors.label_free().vectors()[0], expected[:8])


def test_a_class_with_fewer_than_two_examples_is_minus_one() -> None:
    latents, labels = RNG.normal(size=(5, 4)), np.array([0, 0, 0, 0, 1])
    found = moments(sums_in_chunks(MomentStatistic(identity_projector(4), 3), latents, labels, 5))
    vector = make_descriptors([found], [found.count.astype(float)]).vectors()[0]
    assert np.all(vector[16:] == -1)
    assert not np.any(vector[:16] == -1)


@pytest.mark.parametrize("full", [False, True])
def test_wire_form_keeps_what_it_promises(full: bool) -> None:
    descriptors = sample_descriptors(full=full)
    again = over_the_wire(descriptors)
    np.testing.assert_allclose(again.mean, descriptors.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.spread, descriptors.spread, rtol=3e-3, atol=0.02 if full else 3e-3)
    np.testing.assert_allclose(again.correlation, descriptors.correlation, atol=0.5 / 127 + 1e-9)
    np.testing.assert_array_equal(again.count, descriptors.count)
    np.testing.assert_allclose(again.effective, descriptors.effective)
    np.testing.assert_allclose(again.vectors(), over_the_wire(again).vectors(), atol=5e-3)


def test_the_marginal_follows_from_the_classes() -> None:
    latents, labels = RNG.normal(size=(60, 4)), RNG.integers(3, size=60)
    found = moments(sums_in_chunks(MomentStatistic(identity_projector(4), 3), latents, labels, 60))
    arrived = over_the_wire(make_descriptors([found], [found.count.astype(float)]))
    np.testing.assert_allclose(arrived.mean[0, 0], latents.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(arrived.spread[0, 0], latents.std(axis=0), rtol=2e-3)
    np.testing.assert_allclose(arrived.marginal_covariances()[0], np.cov(latents.T, ddof=0), atol=0.02)


def test_a_descriptor_is_under_half_a_percent_of_lenet5() -> None:
    descriptors = sample_descriptors(classes=10, length=10)
    sent = to_arrays(descriptors.take([0]))
    assert client_bytes(descriptors) == 1178 == sum(a.nbytes for name, a in sent.items() if name != "schema")
    assert client_bytes(descriptors) <= 0.005 * 4 * 61_706
    assert client_bytes(descriptors.label_free()) == 10 * 4 + 10 * 2 + 4 + 4  # moments, examples, different examples


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e6])
def test_the_wire_is_right_at_every_scale(scale: float) -> None:
    descriptors = sample_descriptors()
    scaled = replace(descriptors, mean=scale * descriptors.mean, spread=scale * descriptors.spread)
    np.testing.assert_allclose(over_the_wire(scaled).spread, scaled.spread, rtol=2e-2)


def test_no_deviation_survives_the_wire() -> None:
    descriptors = sample_descriptors()
    flat = replace(descriptors, spread=np.zeros_like(descriptors.spread))
    assert np.all(over_the_wire(flat).spread[:, 1:] == 0)


def test_wire_form_refuses_nonsense() -> None:
    arrays = to_arrays(sample_descriptors())
    with pytest.raises(FedfluxError, match="lacks mean"):
        from_arrays({k: v for k, v in arrays.items() if k != "mean"})
    with pytest.raises(FedfluxError, match="schema 99"):
        from_arrays({**arrays, "schema": np.array(99)})
    with pytest.raises(FedfluxError, match="do not fit"):
        from_arrays({**arrays, "count": arrays["count"][:, :1]})
    with pytest.raises(FedfluxError, match="do not fit"):
        from_arrays({**arrays, "correlation": arrays["correlation"][:, :, :1]})
    with pytest.raises(FedfluxError, match="do not fit"):
        from_arrays({**arrays, "validation_mean": arrays["validation_mean"][:, :1]})
    with pytest.raises(FedfluxError, match="do not fit"):
        from_arrays({**arrays, "noise": np.zeros((1, 2))})
    with pytest.raises(FedfluxError, match="NaN"):
        from_arrays({**arrays, "mean": np.full_like(arrays["mean"], np.nan)})


def test_join_and_take() -> None:
    descriptors = sample_descriptors(4)
    joined = join_descriptors([descriptors.take([0, 1]), descriptors.take([2, 3])])
    np.testing.assert_array_equal(joined.vectors(), descriptors.vectors())


def test_effective_counts_are_kishs() -> None:
    rows = np.array([1, 2, 3, 3, 3, 3])
    labels = np.array([0, 0, 1, 1, 1, 1])
    found = effective_counts(rows, labels, 3)
    np.testing.assert_allclose(found, [36 / 18, 2.0, 1.0, 0.0], rtol=1e-6)


def test_scaling_uses_one_range_per_block_and_reuses_it() -> None:
    descriptors = sample_descriptors()
    scaler = BlockScaler.fit(descriptors)
    scaled = scaler.transform(descriptors)
    for block in range(6):
        part = scaled[:, 4 * block : 4 * block + 4]
        assert part.min() == pytest.approx(0)
        assert part.max() == pytest.approx(1)
    label_free = scaler.transform(descriptors.label_free())
    np.testing.assert_allclose(label_free, scaled[:, :8])


def test_scaling_leaves_a_constant_block_at_zero() -> None:
    one = sample_descriptors(1)
    same = join_descriptors([one, one])
    assert np.all(BlockScaler.fit(same).transform(same)[0] == BlockScaler.fit(same).transform(same)[1])
    flat = replace(same, mean=np.ones_like(same.mean), spread=np.zeros_like(same.spread))
    assert np.all(BlockScaler.fit(flat).transform(flat) == 0)
