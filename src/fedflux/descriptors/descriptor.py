"""S3, descriptors: what clients send about their data, as a record of named blocks with a label-free part."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.moments import Moments
from fedflux.descriptors.sums import precision, spans

MISSING = -1.0
"""What fills the two blocks of a class with fewer than two examples, as in the authors' release."""


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of K clients (flat arrays: one client is K = 1).

    Group 0 is the marginal, group 1 + u is class u; descriptors made without labels have group 0 alone.
    """

    mean: NDArray[np.float64]
    """(K, groups, l)."""
    spread: NDArray[np.float64]
    """(K, groups, l) standard deviations, or (K, groups, l, l) covariances."""
    correlation: NDArray[np.floating]
    """(K, U, l, l): within-class correlations of the reduced latents, the shape of the means' sampling noise; in single
    precision where very many clients arrive over the wire."""
    count: NDArray[np.int64]
    """(K, groups): examples behind each mean."""
    effective: NDArray[np.float64]
    """(K, groups): Kish's effective count, smaller than `count` where a client holds copies of examples, or
    several records of a group."""
    noise: NDArray[np.float64]
    """(K, groups): known variance that privacy added to each coordinate of the means."""
    validation_mean: NDArray[np.float64]
    """(K, l): marginal mean of the validation split, which the model has not trained on."""
    validation_count: NDArray[np.int64]
    """(K,): effective examples behind it, 0 where there is none."""
    count_noise: NDArray[np.float64]
    """(K,): known variance that privacy added to each class count; those counts may be negative."""
    validation_noise: NDArray[np.float64]
    """(K,): known variance that privacy added to each coordinate of the validation mean."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def classes(self) -> int:
        """U, or 0 without labels."""
        return int(self.mean.shape[1]) - 1

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Descriptors":
        """Some clients' descriptors."""
        index = np.asarray(rows, dtype=np.int64)
        return Descriptors(*(getattr(self, field.name)[index] for field in fields(self)))

    def label_free(self) -> "Descriptors":
        """d′: the marginal moments, which an unlabelled client can compute too."""
        groups = {name: getattr(self, name)[:, :1] for name in ("mean", "spread", "count", "effective", "noise")}
        return replace(self, **groups, correlation=self.correlation[:, :0])

    def blocks(self) -> list[NDArray[np.float64]]:
        """[μx, Σx, μ1, Σ1, …, μU, ΣU], each (K, width); classes with fewer than two examples are filled with −1."""
        result = []
        for group in range(self.mean.shape[1]):
            missing = ((self.count[:, group] < 2) | (self.effective[:, group] == 0)) & (group > 0)
            for values in (self.mean[:, group], self.spread[:, group]):
                block = values.reshape(len(self), -1).copy()
                block[missing] = MISSING
                result.append(block)
        return result

    def vectors(self) -> NDArray[np.float64]:
        """The paper's d, one row a client: 2(U + 1)l numbers."""
        return np.concatenate(self.blocks(), axis=1)

    def deviations(self) -> NDArray[np.float64]:
        """(K, groups, l): standard deviations, whichever form the spread has."""
        if self.spread.ndim == 3:
            return self.spread
        return np.asarray(np.sqrt(np.maximum(np.einsum("kgii->kgi", self.spread), 0)))

    def class_covariances(self) -> NDArray[np.floating]:
        """(K, U, l, l)."""
        deviation = self.deviations()[:, 1:]
        result = np.empty(self.correlation.shape, dtype=precision(len(self)))
        for rows in spans(len(self)):
            piece = deviation[rows]
            result[rows] = self.correlation[rows] * piece[..., :, None] * piece[..., None, :]
        return result

    def marginal_covariances(self) -> NDArray[np.float64]:
        """(K, l, l): within classes plus between them."""
        if self.noise.any():
            return self._noisy_marginal_covariances()
        share = self.count[:, 1:] / np.maximum(self.count[:, :1], 1)
        deviation = self.deviations()[:, 1:]
        raw = np.empty((len(self), *self.correlation.shape[2:]))
        for rows in spans(len(self)):
            mean, piece = self.mean[rows, 1:], deviation[rows]
            around_zero = self.correlation[rows] * piece[..., :, None] * piece[..., None, :]
            around_zero = around_zero + mean[..., :, None] * mean[..., None, :]
            raw[rows] = np.einsum("ku,kuij->kij", share[rows], around_zero)
        return np.asarray(raw - self.mean[:, 0, :, None] * self.mean[:, 0, None, :])

    def _noisy_marginal_covariances(self) -> NDArray[np.float64]:
        """The same from classes and a marginal that noise keeps from fitting together: positive whatever it did."""
        weight = np.where(self.effective[:, 1:] > 0, np.maximum(self.count[:, 1:], 0), 0).astype(np.float64)
        total = weight.sum(axis=1)
        share = weight / np.maximum(total, 1)[:, None]
        gap = self.mean[:, 1:] - self.mean[:, :1]
        mixed = np.einsum("ku,kuij->kij", share, self.class_covariances()) + np.einsum(
            "ku,kui,kuj->kij", share, gap, gap
        )
        alone = self.deviations()[:, 0, :, None] ** 2 * np.eye(self.mean.shape[2])
        return np.asarray(np.where((total > 0)[:, None, None], mixed, alone))


def make_descriptors(
    clients: Sequence[Moments],
    effective: Sequence[NDArray[np.float64]],
    validation: Sequence[Moments | None] | None = None,
    full_covariance: bool = False,
) -> Descriptors:
    """Stack the clients' moments; `validation` holds the marginal moments of their validation splits."""
    mean = np.stack([m.mean for m in clients])
    covariance = np.stack([m.covariance for m in clients])
    deviation = np.sqrt(np.einsum("kgii->kgi", covariance))
    held = [None] * len(clients) if validation is None else validation
    length = mean.shape[2]
    return Descriptors(
        mean=mean,
        spread=covariance if full_covariance else deviation,
        correlation=_correlation(covariance[:, 1:], deviation[:, 1:]),
        count=np.stack([m.count for m in clients]),
        effective=np.stack(effective),
        noise=np.zeros(mean.shape[:2]),
        validation_mean=np.stack([np.zeros(length) if m is None else m.mean[0] for m in held]),
        validation_count=np.array([0 if m is None else int(m.count[0]) for m in held], dtype=np.int64),
        count_noise=np.zeros(len(mean)),
        validation_noise=np.zeros(len(mean)),
    )


def _correlation(covariance: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = deviation[..., :, None] * deviation[..., None, :]
    correlation = np.divide(covariance, scale, out=np.zeros_like(covariance), where=scale > 0)
    diagonal = np.arange(covariance.shape[-1])
    correlation[..., diagonal, diagonal] = 1.0
    return np.clip(correlation, -1, 1)


def join_descriptors(parts: Sequence[Descriptors]) -> Descriptors:
    """Descriptors of several groups of clients, one after another."""
    return Descriptors(*(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(Descriptors)))


def effective_counts(
    rows: NDArray[np.int64],
    labels: NDArray[np.int64] | None,
    classes: int | None,
    group: NDArray[np.int64] | None = None,
    within: float = 1.0,
    overall: float = 1.0,
) -> NDArray[np.float64]:
    """Kish's n²/Σc² for everything and for each class, c being the copies a client holds of each distinct example.

    Where records belong to groups of m, whose records correlate by ρ, it is n²/(Σc² + ρ(Σm² − Σc²)): ρ is `overall` for
    everything and `within` for each class (`descriptors.groups`).
    """
    counts, squares = _squares(rows, labels, classes)
    if group is not None:
        rho = np.full(len(counts), within)
        rho[0] = overall
        squares = squares + rho * np.maximum(_squares(group, labels, classes)[1] - squares, 0)
    return np.asarray(counts**2 / np.maximum(squares, 1.0))


def _squares(
    unit: NDArray[np.int64], labels: NDArray[np.int64] | None, classes: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Σc and Σc² over units of c examples, for everything and for each class."""
    number, sizes = np.unique(unit, return_inverse=True, return_counts=True)[1:]
    counts, squares = (np.array([power.sum()], dtype=np.float64) for power in (sizes, sizes**2))
    if labels is None or classes is None:
        return counts, squares
    keys, of_class = np.unique(labels * len(sizes) + number.reshape(-1), return_counts=True)
    label = keys // max(len(sizes), 1)
    parts = [np.bincount(label, weights=power, minlength=classes) for power in (of_class, of_class**2)]
    return np.concatenate([counts, parts[0]]), np.concatenate([squares, parts[1]])
