"""Branches: several models for every cluster, which differ in who trains which of their layers together.

`own`: everything is averaged over the cluster. `trunk`: only the last layer is; all layers before it are averaged over
everybody, or over the clusters whose updates point the same way (`kin`), and these may share the last layer, too.
`general`: everything over everybody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from fedflux.algorithms.base import Averaging
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.clustering import Clusters
from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Stack

OWN, TRUNK, GENERAL = "own", "trunk", "general"
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Branches:
    """The branches that are trained, in order; all but the general one have a model a cluster."""

    stacks: Mapping[str, Stack]
    kin: Index
    """(M,): clusters of one number share their trunk."""
    whole: bool = False
    """Whether they share the last layer, too: nothing in their updates conflicts."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the branches."""
        return tuple(self.stacks)

    @property
    def clusters(self) -> int:
        """M."""
        return len(self.kin)

    @property
    def models(self) -> Stack:
        """A model for every cluster: those of the first branch that has them."""
        return next(stack for name, stack in self.stacks.items() if name != GENERAL)

    @property
    def general(self) -> Stack | None:
        """One model for everyone, where there is one."""
        return self.stacks.get(GENERAL)

    @cached_property
    def answering(self) -> Stack:
        """The models of all branches, one branch after another."""
        return self.models if len(self.stacks) == 1 else Stack.together(list(self.stacks.values()))

    @cached_property
    def begins(self) -> dict[str, int]:
        """The row of `answering` at which each branch begins."""
        ends = np.cumsum([len(stack) for stack in self.stacks.values()]).tolist()
        return dict(zip(self.stacks, [0, *ends[:-1]], strict=True))

    def rows(self, name: str, cluster: Index) -> Index:
        """The rows of a branch's models for clients of these clusters."""
        return self.begins[name] + (np.zeros_like(cluster) if name == GENERAL else cluster)

    def jobs(self, cohort: Cohort, cluster: Index) -> list[Job]:
        """Every member trains its model of every branch, one branch after another."""
        rows = [self.rows(name, cluster).tolist() for name in self.stacks]
        return [Job(client, (row,)) for branch in rows for client, row in zip(cohort, branch, strict=True)]

    def averaged(
        self,
        trained: Stack,
        cluster: Index,
        sizes: NDArray[np.float64],
        head: frozenset[str],
        by_cluster: Averaging,
        over_all: Averaging,
    ) -> "Branches":
        """The branches from what members trained, one branch after another in `trained`.

        `by_cluster` averages models of clusters, which may lend each other; `over_all` those of other groups.
        """
        count, found = len(cluster), {}
        for place, (name, models) in enumerate(self.stacks.items()):
            part = trained if len(self.stacks) == 1 else trained.take(np.arange(place * count, (place + 1) * count))
            if name == GENERAL:
                found[name] = over_all(models, part, np.zeros(count, dtype=np.int64), sizes) if sizes.any() else models
            elif name == TRUNK:
                heads = by_cluster(models, part, cluster, sizes)
                trunks = over_all(models.take(self._first_of_kin), part, self.kin[cluster], sizes)
                found[name] = _joined(heads, trunks.take(self.kin), self._heads(head))
            else:
                found[name] = by_cluster(models, part, cluster, sizes)
        return replace(self, stacks=found)

    def _heads(self, head: frozenset[str]) -> frozenset[str]:
        """The layers of the trunk branch that every cluster averages for itself."""
        return frozenset() if self.whole else head

    @cached_property
    def _first_of_kin(self) -> Index:
        return np.unique(self.kin, return_index=True)[1]

    def moved_on(
        self, after: "Branches", velocity: Stack | None, beta: float, cluster: Index, engine: Engine
    ) -> tuple["Branches", Stack]:
        """`after`, carried on by the server's momentum where somebody trained in this round, and the new velocity.

        `cluster` are the clusters of those who trained. A trunk moves for all of its kin, whoever of them trained.
        """
        there = np.unique(cluster)
        rows = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(self.rows(n, there) for n in self.stacks)]))
        moved, speed = carried_on(self.answering, after.answering, velocity, beta, rows, engine.trained_names)
        if TRUNK in self.stacks and len(there) < self.clusters:
            source = self._trunk_sources(there)
            head = self._heads(engine.head_names)
            moved, speed = (_joined(one, one.take(source), head) for one in (moved, speed))
        return after.with_rows(moved), speed

    def _trunk_sources(self, there: Index) -> Index:
        """For every row of `answering` the one whose trunk it has: of its kin, the first that was trained."""
        source = np.arange(len(self.answering))
        for group in np.unique(self.kin[there]):
            members = np.flatnonzero(self.kin == group)
            source[self.begins[TRUNK] + members] = self.begins[TRUNK] + there[self.kin[there] == group][0]
        return source

    def with_rows(self, answering: Stack) -> "Branches":
        """The same branches with these models in place of all."""
        sizes = [len(stack) for stack in self.stacks.values()]
        parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        stacks = {name: answering.take(rows) for name, rows in zip(self.stacks, parts, strict=True)}
        return replace(self, stacks=stacks)

    def weights(
        self, placed: NDArray[np.float64], parts: NDArray[np.float64], general: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """(clients × rows of `answering`): how much of every model is in the answer to clients.

        `placed` (clients × M) says how likely each cluster is, `parts` (M × branches) what each branch has in the
        answer to a cluster's clients, and `general` (clients,) what the general model has, where that is decided
        client by client.
        """
        names = list(self.stacks)
        mine = [place for place, name in enumerate(names) if name != GENERAL]
        share = np.zeros(len(placed))
        if self.general is not None:
            share = placed @ parts[:, names.index(GENERAL)] if general is None else general
        among = parts[:, mine]
        total = among.sum(axis=1, keepdims=True)
        among = np.where(total > 0, among / np.where(total > 0, total, 1.0), np.eye(len(mine))[:1])
        columns = [placed * among[:, k] * (1 - share)[:, None] for k in range(len(mine))]
        found = dict(zip([names[place] for place in mine], columns, strict=True))
        return np.concatenate([share[:, None] if name == GENERAL else found[name] for name in names], axis=1)

    def inherit(
        self, shares: NDArray[np.float64], velocity: Stack | None, head: frozenset[str]
    ) -> tuple["Branches", Stack | None]:
        """The branches of clusters found anew, `shares` (new × old) of whose models they go on from, and the velocity.

        A new cluster is of the kin that most of it comes from.
        """
        groups = len(self._first_of_kin)
        kin = (shares @ np.eye(groups)[self.kin]).argmax(axis=1)
        kin = np.unique(kin, return_inverse=True)[1].reshape(-1).astype(np.int64)
        stacks = {name: stack if name == GENERAL else stack.average(shares) for name, stack in self.stacks.items()}
        found = replace(self, stacks=stacks, kin=kin, whole=self.whole and bool(kin.any()))
        blocks = [np.ones((1, 1)) if name == GENERAL else shares for name in self.stacks]
        speed = None if velocity is None else velocity.average(block_diag(*blocks))
        return found.tied(speed, head)

    def tied(self, velocity: Stack | None, head: frozenset[str]) -> tuple["Branches", Stack | None]:
        """The same with one trunk for all of a kin: the mean of theirs, which differ where some come from elsewhere."""
        if TRUNK not in self.stacks or self.clusters == 1:
            return self, velocity
        head, begin = self._heads(head), self.begins[TRUNK]
        groups = np.eye(len(self._first_of_kin))[:, self.kin]
        models = self.stacks[TRUNK]
        # one mean a group, handed to its members: a mean for each of them may be rounded otherwise
        tied = _joined(models, models.average(groups).take(self.kin), head)
        found = replace(self, stacks={**self.stacks, TRUNK: tied})
        if velocity is None:
            return found, None
        rows = np.arange(begin, begin + self.clusters)
        mine = velocity.take(rows)
        return found, velocity.put(rows, _joined(mine, mine.average(groups).take(self.kin), head))

    def restart(
        self, rows: Sequence[int], velocity: Stack | None, head: frozenset[str]
    ) -> tuple["Branches", Stack | None]:
        """Clusters that go on from these models, and how those have been moving: cluster m's, or the general one where
        the row is M.
        """
        index = np.array(rows, dtype=np.int64)
        stacks, source = {}, []
        for name in self.stacks:
            mine = np.where(index < self.clusters, self.rows(name, index), self.begins.get(GENERAL, 0))
            mine = self.rows(name, index[:1]) if name == GENERAL else mine
            stacks[name] = self.answering.take(mine)
            source.append(mine)
        found = Branches(stacks, np.zeros(len(index), dtype=np.int64))
        return found.tied(None if velocity is None else velocity.take(np.concatenate(source)), head)

    def without(self, name: str, velocity: Stack | None) -> tuple["Branches", Stack | None]:
        """The other branches, and how they have been moving."""
        stacks = {other: stack for other, stack in self.stacks.items() if other != name}
        begin = self.begins[name]
        rows = np.setdiff1d(np.arange(len(self.answering)), np.arange(begin, begin + len(self.stacks[name])))
        return replace(self, stacks=stacks), None if velocity is None else velocity.take(rows)

    def beside(self, name: str, models: Stack, velocity: Stack | None) -> tuple["Branches", Stack | None]:
        """One more branch, behind the others, at rest where the others have been moving."""
        speed = velocity
        if velocity is not None:
            still = Stack(
                {key: one[:1].new_zeros(len(models), *one.shape[1:]) for key, one in velocity.tensors.items()}
            )
            speed = Stack.together([velocity, still])
        return replace(self, stacks={**self.stacks, name: models}), speed


def _joined(heads: Stack, trunks: Stack, head: frozenset[str]) -> Stack:
    """Models with the heads of the one and the trunks of the other."""
    return Stack({name: (heads if name in head else trunks).tensors[name] for name in heads.tensors})


def shares_of_members(models: int, came_from: Index, clusters: Clusters) -> NDArray[np.float64]:
    """How many members of each cluster found anew had each of the models."""
    shares = np.zeros((len(clusters.centroids), models))
    np.add.at(shares, (clusters.labels, came_from), 1)
    return shares
