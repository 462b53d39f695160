"""CFL: one model until it is at rest while its clients still pull apart; then they are split in two, and so on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import aggregate, by_membership, count_round, rows_of, sizes_of, validated
from fedflux.algorithms.shared.geometry import inner_products
from fedflux.algorithms.shared.membership import mean_losses, own_model, with_placed
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack, Trained

LEAF = -1
ROOT = 0


@dataclass(frozen=True, eq=False)
class CflState:
    """The tree of clusters: a model a node (an inner one's as it was when it split) and the node of every client."""

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(ROOT)]
    children: NDArray[np.int64]
    """The two children of every node, −1 twice for a leaf. Only leaves are trained."""
    greatest: NDArray[np.float64]
    """g: the largest ‖mean update‖ that every node has seen, its ancestors' rounds included."""
    trained: NDArray[np.bool_]
    """Whether a node's model has moved since it was its parent's."""
    round: int = 0


@algorithm("cfl")
@dataclass(frozen=True)
class Cfl(Method):
    """Sattler, Müller, Samek, "Clustered Federated Learning", IEEE TNNLS 2021.

    A leaf is split after a round in which ‖Σ_i (n_i/n) ΔW_i‖ < ε₁ and max_i ‖ΔW_i‖ > ε₂. With partial participation the
    members present decide. An absent one goes to the leaf of least loss when it next takes part; while two leaves are
    still copies of their parent, to the one whose members' mean update points more in the direction of its own.
    """

    settings: Settings
    scale: Literal["round", "greatest"] = "round"
    """What ε₁ and ε₂ are measured by, so that they hold for any model and learning rate; g is the largest mean norm
    that the cluster has seen. `greatest`: ε₁ = g/10, ε₂ = 0.6 g, as in FedDrift's port. `round`: ε₁ = ½ max_i ‖ΔW_i‖,
    ε₂ = g: the members cancel each other out, and one still moves as far as all together ever did. In ten rounds the
    mean norm of clients that differ does not come down to g/10 (on digits it is 0.15 g to 0.6 g), so that `greatest`
    never splits there; that of clients that are alike does fall below half of the largest norm, but then all are small.
    """
    eps1: float | None = None
    """ε₁ itself; the authors' is 0.4 (0 never splits)."""
    eps2: float | None = None
    """ε₂ itself; the authors' is 1.6."""
    warm_up: int | None = None
    """No split in the first rounds; None: max(2, R/5), the authors' 20 of 80 rounds scaled to R."""
    gamma_max: float | None = None
    """Split only if γ_max < √((1 − α_cross)/2), α_cross the largest cosine between the halves; None: whenever the norms
    say so, as the authors' code does."""
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (CflState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune",))

    def init(self, federation: Federation, engine: Engine) -> CflState:
        """Everyone at the root."""
        root = np.full(len(federation), ROOT, dtype=np.int64)
        return CflState(engine.initial(), root, np.full((1, 2), LEAF), np.zeros(1), np.ones(1, dtype=np.bool_))

    def round(self, state: CflState, cohort: Cohort, engine: Engine) -> tuple[CflState, RoundMetrics]:
        """Train every leaf by its members present, then split those that are at rest."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        state, silent = self._descend(state, cohort, engine, metrics)
        members = cohort.only(set(cohort) - silent)
        node = state.assignment[list(members.ids)]
        jobs = [Job(client, (int(m),)) for client, m in zip(members, node, strict=True)]
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, members, jobs, self.settings.training, key)
        if trained.jobs:
            state = self._learn(state, members.only(trained.clients), trained, metrics)
        metrics.send(cohort)
        count_round(metrics, members, trained, state.models.model_bytes(), self.settings.training.epochs)
        metrics.missed(state.round, dict.fromkeys(sorted(silent), "it chose no cluster"))
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _learn(self, state: CflState, cohort: Cohort, trained: Trained, metrics: RoundMetrics) -> CflState:
        """Every leaf's model from what its members trained; then leaves at rest are split."""
        node = rows_of(trained)
        at_leaf = state.children[node, 0] == LEAF
        sizes = sizes_of(trained, cohort) * at_leaf  # who does not know its leaf yet trains to find it
        with metrics.timed("training"):
            models = (self.settings.average or aggregate)(state.models, trained.models, node, sizes)
        with metrics.timed("clustering"):
            products = inner_products(trained.models, state.models, node)
            moved = state.trained.copy()
            moved[node[at_leaf]] = True
            state = replace(state, models=models, trained=moved)
            state = _told_apart(state, cohort, node, sizes, products)
            return self._split(state, cohort, node, sizes, products, metrics)

    def _split(
        self,
        state: CflState,
        cohort: Cohort,
        node: NDArray[np.int64],
        sizes: NDArray[np.float64],
        products: NDArray[np.float64],
        metrics: RoundMetrics,
    ) -> CflState:
        """The split test of every leaf, from the inner products ⟨ΔW_i, ΔW_j⟩ of this round's updates."""
        ids = np.array(cohort.ids)
        for leaf in np.unique(node[sizes > 0]).tolist():
            of = np.flatnonzero(node == leaf)
            within = products[np.ix_(of, of)]
            mean_norm, max_norm = _mean_norm(within, sizes[of]), float(np.sqrt(within.diagonal().max()))
            greatest = state.greatest.copy()
            greatest[leaf] = max(greatest[leaf], mean_norm)
            state = replace(state, greatest=greatest)
            if self._due(state, leaf, mean_norm, max_norm, len(of)):
                halves = bipartition(within, self.gamma_max)
                if halves is not None:
                    first, second = (ids[of[half]] for half in halves)
                    state = _with_children(state, leaf, first, second)
                    metrics.events.append(f"round {state.round}: {len(first)} and {len(second)} clients part")
        return state

    def _due(self, state: CflState, leaf: int, mean_norm: float, max_norm: float, count: int) -> bool:
        warm_up = max(2, self.settings.rounds // 5) if self.warm_up is None else self.warm_up
        greatest = float(state.greatest[leaf])
        rest, pull = (greatest / 10, 0.6 * greatest) if self.scale == "greatest" else (max_norm / 2, greatest)
        eps1 = rest if self.eps1 is None else self.eps1
        eps2 = pull if self.eps2 is None else self.eps2
        return state.round > warm_up and count > 2 and mean_norm < eps1 and max_norm > eps2

    def _descend(
        self, state: CflState, clients: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> tuple[CflState, set[int]]:
        """Clients whose cluster split while they were away go to the leaf below it with the least loss.

        If that is still a copy of its parent, no further than to the parent, since its sibling is another copy.
        Those that did not tell their losses stay where they are, and come back with the state.
        """
        silent: set[int] = set()
        for node in np.unique(state.assignment[list(clients.ids)]):
            leaves = _leaves(state.children, int(node))
            if leaves == [node]:
                continue
            late = clients.only([client for client in clients if state.assignment[client] == node])
            with metrics.timed("clustering"):
                below = state.models.take(leaves)
                losses = mean_losses(below, late, engine)
            goals = [leaf if state.trained[leaf] else _parent(state.children, leaf) for leaf in leaves]
            chosen = [goals[one.argmin()] for one in losses.values()]
            state = replace(state, assignment=with_placed(state.assignment, losses, chosen))
            metrics.send(late, down=len(leaves) * below.model_bytes())
            metrics.count(late, models_down=len(leaves))
            metrics.count(losses, forward=len(leaves))
            silent |= set(late) - losses.keys()
        return state, silent

    def complete(self, state: CflState, clients: Cohort, engine: Engine) -> tuple[CflState, RoundMetrics]:
        """Whoever was away when its cluster split goes into a child now."""
        metrics = RoundMetrics()
        return self._descend(state, clients, engine, metrics)[0], metrics

    def known(self, state: CflState, clients: Cohort, engine: Engine) -> Predictor:
        """The model of the client's node."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: CflState, features: Sequence[Features], engine: Engine) -> Predictor:
        """Without labels there is no update to go by: all leaves, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: CflState) -> NDArray[np.int64]:
        """The node of every client."""
        return state.assignment


def bipartition(
    products: NDArray[np.float64], gamma_max: float | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Positions of the two halves with the least largest cosine between them; None where that is too large to split.

    Complete linkage on 1 − α_ij, α_ij = ⟨ΔW_i, ΔW_j⟩ / (‖ΔW_i‖ ‖ΔW_j‖).
    """
    norms = np.sqrt(products.diagonal())
    cosine = products / (norms[:, None] * norms + 1e-12)
    distance = np.clip(1 - (cosine + cosine.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    labels = fcluster(linkage(squareform(distance), "complete"), 2, criterion="maxclust")
    halves = np.flatnonzero(labels == labels[0]), np.flatnonzero(labels != labels[0])
    if not len(halves[1]):  # all updates are the same
        return None
    closest = 1 - float(distance[np.ix_(*halves)].min())
    return halves if gamma_max is None or gamma_max < np.sqrt((1 - closest) / 2) else None


def _mean_norm(products: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """‖Σ_i (n_i/n) ΔW_i‖ = √(wᵀ P w)."""
    weights = sizes / max(sizes.sum(), 1)
    return float(np.sqrt(max(weights @ products @ weights, 0.0)))


def _with_children(state: CflState, leaf: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> CflState:
    """The leaf becomes an inner node; both children start from its model. Members that are away stay where they are."""
    count = len(state.models)
    children = np.vstack([state.children, np.full((2, 2), LEAF)])
    children[leaf] = count, count + 1
    assignment = state.assignment.copy()
    assignment[first], assignment[second] = count, count + 1
    rows = [*range(count), leaf, leaf]
    models, greatest = state.models.take(rows), state.greatest[rows]
    trained = np.concatenate([state.trained, [False, False]])
    return replace(state, models=models, assignment=assignment, children=children, greatest=greatest, trained=trained)


def _told_apart(
    state: CflState,
    cohort: Cohort,
    node: NDArray[np.int64],
    sizes: NDArray[np.float64],
    products: NDArray[np.float64],
) -> CflState:
    """Members that started from an inner node, as its two children did, join the child whose update is most like it.

    Where only one child has members present, they are asked again another time.
    """
    assignment = state.assignment.copy()
    for k in np.flatnonzero(state.children[node, 0] != LEAF):
        likeness = []
        for child in state.children[node[k]]:
            weights = sizes * (node == child)
            length = np.sqrt(max(weights @ products @ weights, 0.0))
            likeness.append(float(products[k] @ weights / length) if length > 0 else np.nan)
        if not np.isnan(likeness).any():
            assignment[cohort.ids[k]] = state.children[node[k]][int(np.argmax(likeness))]
    return replace(state, assignment=assignment)


def _parent(children: NDArray[np.int64], node: int) -> int:
    return int(np.flatnonzero((children == node).any(axis=1))[0])


def _leaves(children: NDArray[np.int64], node: int) -> list[int]:
    """The leaves at or below a node."""
    if children[node, 0] == LEAF:
        return [node]
    return [leaf for child in children[node] for leaf in _leaves(children, int(child))]
