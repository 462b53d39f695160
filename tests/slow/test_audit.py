"""A distinguishing attack on neighbouring datasets: what is claimed must hold, and what the paper claims does not."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("opendp")

from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors, make_descriptors
from fedflux.descriptors.moments import MomentStatistic, moments
from fedflux.descriptors.privacy.accounting import Privacy, gaussian_noise, release_sigma, spent
from fedflux.descriptors.privacy.mechanism import sigma_of, with_paper_noise
from fedflux.descriptors.privacy.release import SENSITIVITY, ReleaseStatistic
from fedflux.descriptors.projector import Projector
from fedflux.studies.audit import attack_on_group, epsilon_lower_bound

pytestmark = pytest.mark.slow
DELTA = 1e-5
Sample = tuple[NDArray[np.float64], NDArray[np.int64]]


def neighbours(size: int, classes: int, length: int, relabelled: bool) -> tuple[Sample, Sample]:
    """Latents in [−1, 1] and labels; the last record is replaced by its opposite, or by one of another class."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-0.2, 0.2, size=(size, length))
    y = np.arange(size) % classes
    z[-1] = np.eye(length)[0] if relabelled else 1.0
    other_z, other_y = z.copy(), y.copy()
    other_z[-1] = np.eye(length)[1] if relabelled else -1.0
    other_y[-1] = (y[-1] + relabelled) % classes
    return (z, y), (other_z, other_y)


def released(sample: Sample, classes: int) -> NDArray[np.float64]:
    z, y = sample
    projector = Projector(np.zeros(z.shape[1]), np.eye(z.shape[1]))
    return ReleaseStatistic(projector, classes).add(None, torch.tensor(z), torch.tensor(y)).vector(labelled=True)


def separation(noise_for: float, trials: int, relabelled: bool) -> tuple[float, float]:
    """How far apart whole releases of neighbours are, in deviations of what the attacker sees: a 99.9 % interval.

    A Gaussian release at sensitivity Δ keeps its promise if and only if this is at most Δ/σ, so unlike the bound on ε,
    which needs events too rare to be seen, this notices noise that is a fifth (ε = 1) or a twentieth (ε = 6) too small.
    """
    one, other = (released(sample, 2) for sample in neighbours(40, 2, 2, relabelled))
    sigma = sigma_of(Privacy("gaussian", noise_for, DELTA))
    direction = (other - one) / np.linalg.norm(other - one)
    scores = [gaussian_noise(np.tile(exact, (trials, 1)), sigma) @ direction for exact in (one, other)]
    spread = np.sqrt((scores[0].var(ddof=1) + scores[1].var(ddof=1)) / 2)
    apart = float((scores[1].mean() - scores[0].mean()) / spread)
    error = 3.29 * float(np.sqrt(2 / trials + apart**2 / (4 * trials)))
    return apart - error, apart + error


@pytest.mark.parametrize("relabelled", [False, True])
@pytest.mark.parametrize("epsilon", [1.0, 6.0])
def test_neighbours_are_no_farther_apart_than_the_noise_was_made_for(epsilon: float, relabelled: bool) -> None:
    """The worst neighbours there are reach the limit, so noise made for less would be noticed."""
    limit = SENSITIVITY / release_sigma(epsilon, DELTA, SENSITIVITY)
    low, high = separation(epsilon, 6_000, relabelled)
    assert low < limit < high
    assert spent(SENSITIVITY / limit, SENSITIVITY, DELTA) <= epsilon


def attack_on_ours(noise_for: float, trials: int, relabelled: bool) -> float:
    """The bound that likelihood ratios of whole releases prove; the noise is that of this ε."""
    one, other = (released(sample, 2) for sample in neighbours(40, 2, 2, relabelled))
    sigma = sigma_of(Privacy("gaussian", noise_for, DELTA))
    direction = other - one
    scores = [gaussian_noise(np.tile(exact, (trials, 1)), sigma) @ direction for exact in (one, other)]
    return epsilon_lower_bound(scores[0], scores[1], DELTA)


@pytest.mark.parametrize("relabelled", [False, True])
def test_the_gaussian_release_keeps_its_promise(relabelled: bool) -> None:
    """The bound stays below what is claimed, and is high enough to notice a claim of 1 with the same noise."""
    assert 1.0 < attack_on_ours(6.0, 6000, relabelled) < 6.0


def described(sample: Sample, classes: int) -> Descriptors:
    z, y = sample
    projector = Projector(np.zeros(z.shape[1]), np.eye(z.shape[1]))
    found = moments(MomentStatistic(projector, classes).add(None, torch.tensor(z), torch.tensor(y)))
    return make_descriptors([found], [found.count.astype(np.float64)])


def attack_on_the_paper(epsilon: float, trials: int, marginal_alone: bool) -> float:
    """Likelihood ratios of all 220 coordinates, or of the 20 of the marginal block alone."""
    classes, length = 10, 10
    one, other = (described(sample, classes) for sample in neighbours(500, classes, length, relabelled=False))
    if marginal_alone:
        one, other = one.label_free(), other.label_free()
    box = Bounds(np.full(length, -1, dtype=np.float32), np.full(length, 1, dtype=np.float32))
    scale = 2 / (500 * epsilon)
    scores = []
    for exact in (one, other):
        seen = with_paper_noise(exact.take([0] * trials), box, epsilon).vectors()
        scores.append((np.abs(seen - one.vectors()) - np.abs(seen - other.vectors())).sum(axis=1) / scale)
    return epsilon_lower_bound(scores[0], scores[1], 0.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_papers_noise_does_not_keep_the_papers_promise(epsilon: float) -> None:
    assert attack_on_the_paper(epsilon, 600, marginal_alone=False) > 3 * epsilon


def test_it_does_not_even_where_its_sensitivity_is_right() -> None:
    """Means of all examples do move by Range/s at most; but each of the ten spends ε by itself."""
    assert attack_on_the_paper(0.5, 3000, marginal_alone=True) > 1.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_a_group_of_15_records_is_protected_only_where_groups_are_the_unit(epsilon: float) -> None:
    """The same attack proves more than is claimed where the unit is a record, so this could fail."""
    assert attack_on_group(epsilon, "group") < epsilon
    assert attack_on_group(epsilon, "record") > epsilon


def test_the_attack_on_a_group_notices_noise_that_is_too_small() -> None:
    """With the noise of ε = 6 it proves more than 1."""
    assert 1.0 < attack_on_group(6.0, "group") < 6.0
