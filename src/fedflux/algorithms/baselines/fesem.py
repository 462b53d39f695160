"""FeSEM: k-means in parameter space, with local training between its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics, Settings, told_clusters
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import aggregate, by_membership, count_round, sizes_of, validated
from fedflux.algorithms.shared.geometry import coordinates, inner_products, squared_distances
from fedflux.algorithms.shared.membership import mean_losses, own_model, unplaced, with_placed
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.streams import stream, stream_seed


@dataclass(frozen=True, eq=False)
class FesemState:
    """The M centres W̃_m and the centre of every client.

    A client's own parameters W_i are used in the round that they are sent in, so they need not be kept.
    """

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    round: int = 0


@algorithm("fesem")
@dataclass(frozen=True)
class Fesem(Method):
    """Long et al., "Multi-Center Federated Learning", World Wide Web 2023: min Σ_i Σ_m r_im ‖W_i − W̃_m‖².

    A member trains from its centre; its W_i is then given to the nearest centre (E-step, centres as they were sent)
    and averaged into it by size (M-step). A centre that nobody is given to stays where it is.
    """

    settings: Settings
    start: Literal["kmeans", "random", "loss"] = "kmeans"
    """Where the first centres come from. `kmeans`: everyone trains one round from the common initial model, and k-means
    of the W_i gives the centres. `random` and `loss`: M independent models, which clients draw or choose by loss. Then
    distances mostly tell which initial model a client began from, and hardly anyone ever leaves its first centre."""
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FesemState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune", "clusters"))

    def init(self, federation: Federation, engine: Engine) -> FesemState:
        """M centres, nobody placed."""
        count = told_clusters(self.settings, "fesem")
        models = engine.initial().take([0] * count) if self.start == "kmeans" else engine.initial(count)
        return FesemState(models, np.full(len(federation), UNPLACED, dtype=np.int64))

    def round(self, state: FesemState, cohort: Cohort, engine: Engine) -> tuple[FesemState, RoundMetrics]:
        """Train from the own centre, find the nearest centre, average into it."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        first = self.start == "kmeans" and bool((state.assignment == UNPLACED).all())
        members = cohort
        if not first:
            state = self._place(state, cohort, engine, metrics)
            silent = unplaced(state.assignment, cohort)
            members = cohort.only(set(cohort) - set(silent))
            metrics.missed(state.round, dict.fromkeys(silent, "it chose no centre"))
        centre = np.zeros(len(members), dtype=np.int64) if first else state.assignment[list(members.ids)]
        jobs = [Job(client, (int(m),)) for client, m in zip(members, centre, strict=True)]
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, members, jobs, self.settings.training, key)
        if trained.jobs:
            with metrics.timed("clustering"):
                own = trained.models
                nearest = self._first_centres(state, own) if first else self._nearest(state, own)
            with metrics.timed("training"):
                average = self.settings.average or aggregate
                models = average(state.models, own, nearest, sizes_of(trained, cohort))
            state = replace(state, models=models, assignment=with_placed(state.assignment, trained.clients, nearest))
        metrics.send(cohort)
        count_round(metrics, members, trained, state.models.model_bytes(), self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _nearest(self, state: FesemState, trained: Stack) -> NDArray[np.int64]:
        """E-step: m_i = argmin_m ‖W_i − W̃_m‖."""
        return np.asarray(squared_distances(trained, state.models).argmin(axis=1))

    def _first_centres(self, state: FesemState, trained: Stack) -> NDArray[np.int64]:
        """k-means of the W_i. With fewer members than centres, those left over stay at the initial model."""
        points = coordinates(inner_products(trained, state.models, np.zeros(len(trained), dtype=np.int64)))
        count = min(len(state.models), len(points))
        seed = stream_seed(self.settings.seed, "fesem") % 2**32
        labels: NDArray[np.int64] = KMeans(count, n_init=10, random_state=seed).fit_predict(points).astype(np.int64)
        return labels

    def _place(self, state: FesemState, clients: Cohort, engine: Engine, metrics: RoundMetrics) -> FesemState:
        """A client without W_i has no distance yet: it takes the centre of least loss, or draws one."""
        newcomers = clients.only(unplaced(state.assignment, clients))
        if not len(newcomers):
            return state
        count = len(state.models)
        if self.start == "random":
            drawn = [stream(self.settings.seed, "fesem", client=client).integers(count) for client in newcomers]
            return replace(state, assignment=with_placed(state.assignment, newcomers, np.array(drawn)))
        with metrics.timed("clustering"):
            losses = mean_losses(state.models, newcomers, engine)
        metrics.send(newcomers, down=count * state.models.model_bytes())
        metrics.count(newcomers, models_down=count)
        metrics.count(losses, forward=count)
        chosen = [int(one.argmin()) for one in losses.values()]
        return replace(state, assignment=with_placed(state.assignment, losses, chosen))

    def complete(self, state: FesemState, clients: Cohort, engine: Engine) -> tuple[FesemState, RoundMetrics]:
        """Whoever never took part is placed like a newcomer."""
        metrics = RoundMetrics()
        return self._place(state, clients, engine, metrics), metrics

    def known(self, state: FesemState, clients: Cohort, engine: Engine) -> Predictor:
        """The client's centre."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: FesemState, features: Sequence[Features], engine: Engine) -> Predictor:
        """Without labels nobody can train: all centres, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: FesemState) -> NDArray[np.int64]:
        """The centre of every client, −1 where it has none yet."""
        return state.assignment
