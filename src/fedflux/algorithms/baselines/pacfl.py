"""PACFL: clients whose raw data span like subspaces train one model together; clusters are found once, at the start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.linalg import svds
from scipy.spatial.distance import squareform

from fedflux.algorithms.base import UNPLACED, Settings
from fedflux.algorithms.flux.describe import asked
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import by_membership
from fedflux.algorithms.shared.one_shot import OneShot, OneShotState, as_they_appear
from fedflux.data import Features, Federation, Split
from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine import Engine, Predictor
from fedflux.operations import Arrays, operation

SMALL = 64
"""Matrices of no more rows or columns than this are decomposed whole."""
NEARLY = 1e-3
"""How far vectors in single precision may be from orthonormal."""
RIGHT_ANGLE = 90.0
Angle = Literal["smallest", "mean"]


@operation("subspace")
@dataclass(frozen=True)
class AskSubspace(AskedAlone):
    """The leading left singular vectors of the matrix whose columns are a client's inputs, as they are; no labels."""

    width: int
    """d: numbers in an input."""
    vectors: int
    split: Split = "train"
    name: ClassVar[str] = "basis"

    @property
    def shape(self) -> tuple[int, ...]:
        """A row a vector."""
        return (self.vectors, self.width)

    def passes(self) -> Sequence[Pass]:
        """No latents."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        """The vectors; a client with fewer examples than vectors leaves the last ones zero."""
        x = held.scaled(self.split)
        if not len(x):
            raise NothingToTellError(f"it holds no inputs in its {self.split} part")
        return {"basis": leading(x.flatten(1).numpy().astype(np.float32), self.vectors)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Vectors of another form, not finite, or not orthonormal."""
        what = "its subspace"
        fault = shape_fault(answer, {"basis": self.shape}, what) or finite_fault(answer, what)
        if fault is not None:
            return fault
        found = answer["basis"].astype(np.float64)
        gram = found @ found.T
        there = np.diag((np.diag(gram) > 0.5).astype(np.float64))
        return None if np.abs(gram - there).max() <= NEARLY else f"{what} has no orthonormal basis"


def leading(x: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The first `count` right singular vectors of a matrix (examples × numbers), a row each."""
    basis = np.zeros((count, x.shape[1]), dtype=np.float32)
    least = min(x.shape)
    if not x.any():
        return basis
    if least <= max(SMALL, count):
        _, values, vectors = np.linalg.svd(x, full_matrices=False)
    else:
        _, values, vectors = svds(x, k=count, v0=np.ones(least, dtype=x.dtype))
        values, vectors = values[::-1], vectors[::-1]
    there = int((values[:count] > values.max(initial=0.0) * 1e-6).sum())
    basis[:there] = vectors[:there]
    return basis


def principal_angles(mine: NDArray[np.float32], theirs: NDArray[np.float32], which: Angle) -> NDArray[np.float64]:
    """Degrees between all pairs of subspaces (mine × theirs): the smallest principal angle, or the mean of all.

    Where one has fewer vectors than the other, the angles are as many as it has.
    """
    found = np.full((len(mine), len(theirs)), RIGHT_ANGLE)
    ranks = [np.array([(np.abs(one).sum(axis=1) > 0).sum() for one in side]) for side in (mine, theirs)]
    for k, own in enumerate(mine):
        cosines = np.linalg.svd(np.einsum("pd,kqd->kpq", own, theirs).astype(np.float64), compute_uv=False)
        angles = np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))
        for other, shared in enumerate(np.minimum(ranks[0][k], ranks[1])):
            if shared:
                found[k, other] = angles[other, 0] if which == "smallest" else angles[other, :shared].mean()
    return found


@algorithm("pacfl")
@dataclass(frozen=True)
class Pacfl(OneShot):
    """Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal
    Angles Between Client Data Subspaces", AAAI 2023, in its unlabelled form.

    The authors choose β for every dataset, and take vectors of every class where classes are what differs; without
    labels newcomers can join by their inputs alone.
    """

    settings: Settings
    vectors: int = 3
    """p: the authors' 3 to 5."""
    angle: Angle = "mean"
    """What is between two subspaces: the authors take the smallest principal angle, or the sum of all."""
    beta: float = 11.0
    """β, degrees: where the tree of average linkage is cut."""
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    reads: ClassVar[frozenset[str]] = frozenset(("finetune",))

    def question(self, federation: Federation, split: Split = "train") -> AskSubspace:
        """The subspace of its inputs."""
        return AskSubspace(int(np.prod(federation.input_shape)), self.vectors, split)

    def distances(self, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Principal angles, in degrees."""
        return principal_angles(mine, theirs, self.angle)

    def clustered(self, distances: NDArray[np.float64]) -> NDArray[np.int64]:
        """The tree of average linkage, cut at β."""
        if len(distances) < 2:
            return np.zeros(len(distances), dtype=np.int64)
        even = (distances + distances.T) / 2
        np.fill_diagonal(even, 0.0)
        found = fcluster(linkage(squareform(even, checks=False), "average"), self.beta, "distance")
        return as_they_appear(found.astype(np.int64))

    def nearest(self, distances: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """That of the nearest subspace."""
        return np.asarray(labels[distances.argmin(axis=1)])

    def unseen(self, state: OneShotState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The cluster of the nearest subspace; whoever tells none is answered by all models, by how many each has."""
        mixture = by_membership(state.models, state.assignment, len(features))
        placed = np.flatnonzero(state.assignment != UNPLACED)
        if not len(placed):
            return mixture
        question = AskSubspace(state.summaries.shape[2], self.vectors, "test")
        answers = engine.ask(question, features)
        if not len(answers):
            return mixture
        rows = {client: row for row, client in enumerate(asked(features))}
        between = self.distances(answers.stacked("basis"), state.summaries[placed])
        chosen = self.nearest(between, state.assignment[placed])
        weights = mixture.weights.copy()
        weights[[rows[client] for client in answers.clients]] = np.eye(len(state.models))[chosen]
        return Predictor(state.models, weights)
