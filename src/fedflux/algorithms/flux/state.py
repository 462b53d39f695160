"""FLUX's two states: one model for everyone until C(r) fires, then one a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, PerClient
from fedflux.algorithms.flux.describe import Extractor
from fedflux.algorithms.flux.placing import make_offer, members_of
from fedflux.algorithms.flux.sharing.ballots import Ballot
from fedflux.algorithms.flux.sharing.branches import GENERAL, Branches
from fedflux.clustering import Clusters
from fedflux.clustering.placement.offer import Offer
from fedflux.clustering.placement.queries import Tries
from fedflux.engine import Stack


@dataclass(frozen=True, eq=False)
class WarmUp:
    """FedAvg's one model, and how well it has served so far."""

    models: Stack
    """A stack of one."""
    clients: Annotated[int, PerClient()]
    round: int = 0
    accuracies: tuple[float, ...] = ()
    velocity: Stack | None = None
    """How the model has been moving, where the server has momentum."""
    over: bool = False
    """The rounds are over, and nobody was clustered: everyone shares the model."""


@dataclass(frozen=True, eq=False)
class Clustered:
    """Models for every cluster, who is where, and what places newcomers."""

    branches: Branches
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    round: int
    cluster_round: int
    extractor: Extractor
    clusters: Clusters
    described: tuple[int, ...]
    """The ids of the clients behind `descriptors`, in order of description."""
    descriptors: Mapping[str, NDArray[np.generic]]
    """As they were sent, which is an eighth of what is computed with: there may be very many."""
    clustered: int
    """How many of the described clients the clusters were found from; later ones were placed."""
    looks: tuple[int, ...] = ()
    """The rounds after which clusters were looked for."""
    velocity: Stack | None = None
    """How the models of all branches have been moving, where the server has momentum."""
    ballot: Ballot | None = None
    """What members voted on the branches; None: nothing is voted on."""
    dropped: tuple[str, ...] = ()
    """Branches that members could do without."""
    tries: Tries | None = None
    """What members' validation parts said of the clusters after the last round; None: nobody was asked."""

    @property
    def models(self) -> Stack:
        """A model for every cluster."""
        return self.branches.models

    @property
    def general(self) -> Stack | None:
        """One model for everyone, where the method keeps one."""
        return self.branches.general

    @property
    def answering(self) -> Stack:
        """The models of all branches."""
        return self.branches.answering

    @cached_property
    def parts(self) -> NDArray[np.float64]:
        """(M × branches): what every branch has in the answer to a cluster's clients."""
        found = np.zeros((self.branches.clusters, len(self.branches.names)))
        if self.ballot is None:
            found[:, 0] = 1.0
        else:
            found[:, [self.branches.names.index(name) for name in self.ballot.names]] = self.ballot.parts()
        return found

    @property
    def share(self) -> float:
        """The general model's part in the answer to a client, on average."""
        if self.general is None:
            return 0.0
        part = self.parts[:, self.branches.names.index(GENERAL)]
        return float(part[0] if (part == part[0]).all() else part.mean())

    @cached_property
    def offer(self) -> Offer:
        """What unseen clients are offered."""
        return make_offer(self.clusters, self.assignment, self.tries)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(M,): how many clients every cluster has."""
        return members_of(self.clusters, self.assignment)

    @property
    def holders(self) -> NDArray[np.float64]:
        """(M,): how many clients are behind what is known of every cluster; late ones are not."""
        return self.clusters.pool.members
