"""Unseen clients by class mixtures: what they are offered, what members tried before, and where they go (Algorithm 2).

The server sends moments, and every client scores its own images: all that it tells is its posterior over clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedflux.algorithms.flux.describe import Extractor
from fedflux.clustering import Clusters
from fedflux.clustering.placement.misfit import usual_among
from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.clustering.placement.offer import Offer
from fedflux.clustering.placement.posterior import learned, learned_offsets, votes_of
from fedflux.clustering.placement.queries import AskPlacement, AskTries, Tries
from fedflux.data import Cohort, Features, Held
from fedflux.engine import Engine
from fedflux.placement import Placement
from fedflux.streams import stream

TRIED = 256
"""Members that try, at most: a few hundred tell all there is to learn."""
MOST = 100_000
"""Bytes of moments that an unseen client is sent; of more clusters it first makes a coarse choice. Very many classes or
components, of which every client is told, come on top."""
PAST = 0.5
"""Clients that a cluster counts with that nobody is in any more."""


def members_of(clusters: Clusters, assignment: NDArray[np.int64]) -> NDArray[np.int64]:
    """(M,): how many clients every cluster has."""
    return np.bincount(assignment[assignment >= 0], minlength=len(clusters.pool))


def sent_mixtures(clusters: Clusters) -> ClassMixtures:
    """The clusters' mixtures; where they are many, without what their covariances have of their own, or a byte a number
    as well.
    """
    mixtures = clusters.mixtures
    mixtures = mixtures if mixtures.nbytes <= MOST else mixtures.alike()
    return mixtures if mixtures.nbytes <= MOST else mixtures.coded()


def ask_tries(
    extractor: Extractor, clusters: Clusters, members: Cohort, engine: Engine, seed: int
) -> tuple[Tries, int] | None:
    """What members' validation parts say of all clusters, and the bytes that each of them was sent; None where nobody
    answered.
    """
    chosen = set(_some(len(members.federation), seed))
    members = members.only([k for k in members if k in chosen and members.federation.size(k, "validation")])
    if not len(members):
        return None
    mixtures = sent_mixtures(clusters)
    answers = engine.ask(AskTries(extractor.question, mixtures, seed), members, extractor.reference)
    if not len(answers):
        return None
    return Tries.of(answers.clients, answers.arrays, len(mixtures)), mixtures.nbytes


def _some(clients: int, seed: int) -> NDArray[np.int64]:
    if clients <= TRIED:
        return np.arange(clients)
    return np.asarray(stream(seed, "who tries").choice(clients, TRIED, replace=False))


def make_offer(clusters: Clusters, assignment: NDArray[np.int64], tries: Tries | None) -> Offer:
    """All clusters, with the temperature and the usual misfit that the tries teach."""
    mixtures, members = sent_mixtures(clusters), members_of(clusters, assignment)
    prior = np.where(members > 0, members, PAST).astype(np.float64)
    prior /= prior.sum()
    plain = Offer(mixtures, prior.astype(np.float32))
    if tries is None:
        return plain
    likelihoods, counts = tries.likelihoods.astype(np.float64), tries.sizes.astype(np.float64)
    own, vote = assignment[tries.client], votes_of(counts, tries.client)
    offset = learned_offsets(likelihoods, counts, own, vote, mixtures.error, prior)
    temperature = learned(likelihoods + counts[:, None] * offset, counts, own, vote, mixtures.error, prior)
    usual = usual_among(clusters.pool.members <= 1, assignment[tries.member], tries.misfits())
    return Offer(replace(mixtures, offset=offset.astype(np.float32)), plain.prior, temperature, usual)


@dataclass(frozen=True, eq=False)
class Placed:
    """Who answered, and where they go."""

    clients: tuple[int, ...]
    placement: Placement


def place_unseen(
    extractor: Extractor,
    offer: Offer,
    clusters: Clusters,
    offered: NDArray[np.bool_],
    alone: NDArray[np.bool_],
    features: Sequence[Features],
    engine: Engine,
    level: float,
) -> Placed | None:
    """The posterior over the clusters on offer of every client that answers; None where nobody does.

    `alone` are clusters of one member: nothing tells how clients of such a cluster differ, so that nobody in them is
    called novel, and the verdict says that it is not calibrated.
    """
    rows = np.flatnonzero(offered)
    found: dict[int, tuple[NDArray[np.float64], float]] = {}
    whole = offer.only(rows)
    if whole.nbytes <= MOST or _fitting(whole) >= len(rows):
        _ask(extractor, whole, rows, features, engine, found, len(offered))
    else:
        lists, coarse = _neighbourhoods(clusters, offer, rows)
        near: dict[int, tuple[NDArray[np.float64], float]] = {}
        _ask(extractor, coarse, np.arange(len(lists)), features, engine, near, len(lists))
        for place, listed in enumerate(lists):
            here = [client for client, (posterior, _) in near.items() if posterior.argmax() == place]
            if here:
                some = _only(features, here)
                _ask(extractor, offer.only(listed), listed, some, engine, found, len(offered), here)
    if not found:
        return None
    clients = tuple(sorted(found))
    posterior = np.stack([found[client][0] for client in clients])
    score = np.array([found[client][1] for client in clients])
    return Placed(clients, placement_of(posterior, score, offer, alone, level))


def placement_of(
    posterior: NDArray[np.float64],
    score: NDArray[np.float64],
    offer: Offer,
    alone: NDArray[np.bool_],
    level: float,
) -> Placement:
    """Where clients go that chose so among the clusters on offer, and which of them are like none."""
    cluster = posterior.argmax(axis=1).astype(np.int64)
    known = ~alone[cluster] & offer.usual.calibrated
    score = np.where(known, score, 1.0)
    return Placement(cluster, score < level, score, posterior, known)


def _ask(
    extractor: Extractor,
    offer: Offer,
    rows: NDArray[np.int64],
    features: Sequence[Features],
    engine: Engine,
    found: dict[int, tuple[NDArray[np.float64], float]],
    clusters: int,
    places: Sequence[int] | None = None,
) -> None:
    """Put every client's posterior over these clusters among those that were found."""
    answers = engine.ask(AskPlacement(extractor.question, offer), features, extractor.reference)
    for client, answer in zip(answers.clients, answers.arrays, strict=True):
        posterior = np.zeros(clusters)
        posterior[rows] = answer["posterior"].astype(np.float64)
        who = client if places is None or isinstance(features, Held) else places[client]
        found[who] = posterior / posterior.sum(), float(answer["score"])


def _only(features: Sequence[Features], clients: Sequence[int]) -> Sequence[Features]:
    """Some of the clients."""
    if isinstance(features, Held):
        return features.cohort.only(clients).features(features.split)
    return [features[client] for client in clients]


def _neighbourhoods(clusters: Clusters, offer: Offer, rows: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], Offer]:
    """Where clusters are too many to send: overlapping lists of like ones, and one mixture for each list.

    A list holds a group of like clusters and those next to it, so that a choice at its edge is no wrong one.
    """
    fitting, mixtures = _fitting(offer), offer.mixtures
    points = np.concatenate(
        [np.sqrt(mixtures.share[rows]), (mixtures.means * mixtures.share[..., None])[rows].reshape(len(rows), -1)],
        axis=1,
    )
    count = min(max(-(-4 * len(rows) // fitting), 2), fitting, len(rows))
    group = KMeans(count, n_init=1, random_state=0).fit(points.astype(np.float64))
    lists: list[NDArray[np.int64]] = []
    merged = np.zeros(len(offer.prior), dtype=np.int64)
    for number in range(count):
        distance = ((points - group.cluster_centers_[number]) ** 2).sum(axis=1)
        outside = (group.labels_ != number).astype(np.int64)
        order = np.lexsort((distance, outside))
        own = int((outside == 0).sum())
        for begin in range(0, max(own, 1), fitting):
            mine = order[begin : begin + fitting]
            merged[rows[order[begin : min(begin + fitting, own)]]] = len(lists) + 1
            lists.append(rows[np.sort(mine)])
    pool = clusters.pool.merge(merged)
    prior = np.bincount(merged, weights=offer.prior, minlength=len(lists) + 1)[1:]
    coarse = ClassMixtures.of(pool).only(np.arange(1, len(lists) + 1))
    coarse = coarse if coarse.nbytes <= MOST else coarse.coded()
    return lists, Offer(coarse, (prior / prior.sum()).astype(np.float32), offer.temperature)


def _fitting(offer: Offer) -> int:
    """How many clusters are sent at once; where what all share is large already, they may be half as much again."""
    shared = _shared(offer.mixtures)
    each = max((offer.nbytes - shared) // len(offer.prior), 1)
    return max((MOST - shared) // each, MOST // 2 // each, 2)


def _shared(mixtures: ClassMixtures) -> int:
    """Bytes that do not grow with the number of clusters."""
    return int(mixtures.centre.nbytes + mixtures.whitening.nbytes + mixtures.step.nbytes)
