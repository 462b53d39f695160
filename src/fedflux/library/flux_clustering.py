"""The server's side of FLUX in a loop of one's own: from what clients say to clusters, and to where others belong."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from fedflux.algorithms.flux.describe import (
    DescriptorSettings,
    bounded_question,
    discriminant_question,
    public_question,
    scatter_of,
    too_few,
)
from fedflux.algorithms.flux.placing import make_offer, placement_of
from fedflux.clustering import ALPHA, Clusterer, find_clusters, name_of_clusterer
from fedflux.clustering.placement.novelty import LEVEL
from fedflux.clustering.placement.queries import AskPlacement, AskTries, Tries
from fedflux.data.holding import About
from fedflux.descriptors.checks import wide_faults
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.projector import COMPONENTS
from fedflux.descriptors.queries import AskBounds, AskDescriptor, read_bounds
from fedflux.descriptors.wire import from_arrays, join_arrays
from fedflux.errors import FedfluxError
from fedflux.library.messages import HEADER, Message, mark_of, opened, opened_question, sealed_question
from fedflux.library.records import as_tensor
from fedflux.operations import Arrays
from fedflux.placement import Placement

MANY = 2**31
"""More records than a client that is asked here holds: nobody declared how many there are."""


class FluxClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Clusters clients by their descriptors, without being told how many clusters there are, and places others.

    It is told what `Describer` makes at the clients, and computes what the method `flux` computes in a run.

    Parameters
    ----------
    clusterer : str or estimator, default="calibrated"
        A name that `fedflux run --clusterer` takes, or a scikit-learn clusterer of one's own.
    n_clusters : int, optional
        Of `kmeans`; the others find it.
    significance : float, default=0.01
        Of `calibrated`: the chance that clients without any shift are parted at all.
    components : int, default=10
        Length of the reduced latents.
    epsilon, delta : float, optional
        Differential privacy of descriptors: see `private_extractor`.
    privacy_unit : {"record", "group"}, default="record"
        Whom it protects.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client.
    n_clusters_ : int
        How many there are.
    extractor_ : dict of arrays
        What clients describe their records by; made by `extractor` or `private_extractor`.
    offer_ : dict of arrays
        What an unlabelled client chooses its cluster by; there where `fit` knew the extractor.

    Examples
    --------
    >>> from fedflux import Describer
    >>> rng = np.random.default_rng(0)
    >>> clients = [(rng.normal(size=(200, 12)) + 2 * (k % 2), rng.integers(3, size=200)) for k in range(6)]
    >>> d, flux = Describer(classes=3), FluxClustering()
    >>> extractor = flux.extractor([d.bounds(x) for x, y in clients])
    >>> flux.fit([d.describe(x, y, extractor) for x, y in clients]).labels_.tolist()
    [0, 1, 0, 1, 0, 1]
    >>> flux.predict_proba([d.scores(clients[3][0], flux.offer_)]).round().tolist()
    [[0.0, 1.0]]
    """

    def __init__(
        self,
        clusterer: Any = "calibrated",
        *,
        n_clusters: int | None = None,
        significance: float = ALPHA,
        components: int = COMPONENTS,
        epsilon: float | None = None,
        delta: float = 1e-5,
        privacy_unit: Literal["record", "group"] = "record",
    ) -> None:
        self.clusterer = clusterer
        self.n_clusters = n_clusters
        self.significance = significance
        self.components = components
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit

    def __sklearn_tags__(self) -> Any:
        """It takes messages of clients, not an array of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags

    def extractor(self, bounds: Sequence[Message], *, scatter: Sequence[Message] | None = None) -> Message:
        """What all clients describe their records by, from everybody's `bounds`; to be sent to them, and kept here.

        With `scatter`, made under the extractor of the same bounds, it sees finer where records are few.
        """
        if self.epsilon is not None:
            raise FedfluxError("epsilon is set, and bounds are not protected: use private_extractor(public, classes)")
        if not bounds:
            raise FedfluxError("no client told its bounds")
        told = [opened(one, "bounds", f"bounds {k}") for k, one in enumerate(bounds)]
        numbers = sorted({int(one.about["classes"]) for one in told})
        if len(numbers) > 1:
            raise FedfluxError(f"clients disagree on the number of classes: {', '.join(map(str, numbers))}")
        width = len(told[0].arrays["low"])
        asked, about = AskBounds(width), About({"train": MANY}, numbers[0])
        _refuse("bounds", [asked.fault(one.arrays, about) for one in told])
        found = [read_bounds(one.arrays) for one in told]
        _refuse("bounds", wide_faults(found))
        question = bounded_question(found, numbers[0], DescriptorSettings(components=self.components))
        message = sealed_question("extractor", question)
        if scatter is not None:
            parts = _answers(scatter, "scatter", mark_of(message, "extractor"))
            ask = scatter_of(question)
            _refuse("scatter", [ask.fault(one, about) for one in parts])
            message = sealed_question("extractor", discriminant_question(question, parts)[0])
        self.extractor_ = message
        return message

    def private_extractor(self, public: Any, classes: int, *, releases: int = 1) -> Message:
        """The same under differential privacy, where nobody is asked for bounds: from latents of inputs that nobody
        owns, made by the same encoder. `releases` is how often a client will describe the same records.
        """
        if self.epsilon is None:
            raise FedfluxError("private_extractor needs a budget: FluxClustering(epsilon=…)")
        privacy = Privacy("gaussian", self.epsilon, self.delta, releases, self.privacy_unit)
        centre = as_tensor(public).double().flatten(1).mean(dim=0).numpy()
        settings = DescriptorSettings(components=self.components, privacy=privacy)
        self.extractor_ = sealed_question("extractor", public_question(centre, classes, settings))
        return self.extractor_

    def fit(self, X: Any, y: Any = None, *, extractor: Message | None = None) -> Self:
        """Cluster clients by their descriptors: messages of `Describer.describe`, or the arrays that a run keeps.

        `extractor` is the one that clients used, where it was not made here.
        """
        if extractor is not None:
            self.extractor_ = extractor
        self._used: Message | None = getattr(self, "extractor_", None)
        descriptors = self._read(X)
        self._clusters = find_clusters(descriptors, self._how())
        self.labels_ = self._clusters.labels
        self.n_clusters_ = len(self._clusters.centroids)
        if hasattr(self, "offer_"):
            del self.offer_
        question = self._question()
        if question is not None:
            few = too_few(descriptors, DescriptorSettings(projector="auto", privacy=question.privacy))
            if few is not None and question.given is None:
                words = f"{few:.0f} records a class: an extractor with scatter may see finer"
                warnings.warn(words, stacklevel=2)
            self._offered(None)
        return self

    def calibrate(self, tries: Sequence[Message | None]) -> Self:
        """Learn from what members tried how sure placements may be; an entry a client of `fit`, None for silent ones.

        It changes `offer_`. Without it posteriors are cautious, and nobody is called novel.
        """
        question = self._asked()
        there = [(k, one) for k, one in enumerate(tries) if one is not None]
        if len(tries) != len(self.labels_):
            told = f"{len(tries)} tries of {len(self.labels_)} clients"
            raise FedfluxError(f"{told}: give None for those who said nothing")
        if there:
            parts = [opened(one, "tries", f"tries {k}").arrays for k, one in there]
            ask, about = AskTries(question.described, question.offer.mixtures, 0), About({"validation": MANY}, 0)
            _refuse("tries", [ask.fault(one, about) for one in parts], [k for k, _ in there])
            self._offered(Tries.of([k for k, _ in there], parts, self.n_clusters_))
        return self

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Clusters of clients with labels that came late, from their descriptors."""
        check_is_fitted(self, "labels_")
        return self._clusters.likeliest(self._read(X))

    def predict_proba(self, X: Sequence[Message]) -> NDArray[np.float64]:
        """Probabilities of the clusters for unlabelled clients, from their `scores`: a row a client."""
        return self.place(X).posterior

    def place(self, scores: Sequence[Message], *, novelty_level: float = LEVEL) -> Placement:
        """Where unlabelled clients belong, how sure that is, and which of them are like no cluster."""
        question = self._asked()
        parts = _answers(scores, "scores", mark_of(self.offer_, "offer"), "offer")
        _refuse("scores", [question.fault(one, About({"test": MANY}, 0)) for one in parts])
        posterior = np.stack([one["posterior"].astype(np.float64) for one in parts])
        posterior /= posterior.sum(axis=1, keepdims=True)
        score = np.array([float(one["score"]) for one in parts])
        alone = self._clusters.pool.members <= 1
        return placement_of(posterior, score, question.offer, alone, novelty_level)

    def _how(self) -> Clusterer:
        name = name_of_clusterer(self.clusterer)
        if self.n_clusters is not None and name != "kmeans":
            raise FedfluxError(f"n_clusters is for clusterer='kmeans'; {name} finds the number by itself")
        return Clusterer(name, self.n_clusters, significance=self.significance)

    def _question(self) -> AskDescriptor | None:
        """How the clients of `fit` were described; a later extractor is for the next one."""
        return None if self._used is None else opened_question(self._used, "extractor", AskDescriptor)

    def _offered(self, tries: Tries | None) -> None:
        question = self._question()
        assert question is not None
        offer = make_offer(self._clusters, self.labels_, tries)
        self.offer_ = sealed_question("offer", AskPlacement(question, offer))

    def _asked(self) -> AskPlacement:
        """What unlabelled clients are asked."""
        check_is_fitted(self, "labels_")
        if not hasattr(self, "offer_"):
            raise FedfluxError("unlabelled clients need an offer: fit(descriptors, extractor=…) makes one")
        return opened_question(self.offer_, "offer", AskPlacement)

    def _read(self, told: Any) -> Descriptors:
        """Descriptors in whichever form they were handed in, each of them checked."""
        if isinstance(told, Descriptors):
            return told
        if isinstance(told, Mapping) and HEADER not in told:
            return from_arrays({name: np.asarray(one) for name, one in told.items()})
        if not isinstance(told, Iterable):
            raise FedfluxError(f"{type(told).__name__} is no list of descriptors: give what clients describe")
        messages = [told] if isinstance(told, Mapping) else list(told)
        if not messages:
            raise FedfluxError("no client described itself")
        question = self._question()
        mark = None if self._used is None else mark_of(self._used, "extractor")
        parts = _answers(messages, "descriptor", mark)
        if question is not None:
            abouts = [About({"train": _held(one)}, question.classes) for one in parts]
            _refuse("descriptor", [question.fault(one, about) for one, about in zip(parts, abouts, strict=True)])
        return from_arrays(join_arrays(parts))


def _held(descriptor: Arrays) -> int:
    """How many records a descriptor says that its client holds."""
    counts = descriptor.get("size", descriptor.get("count"))
    return 0 if counts is None else int(counts.astype(np.int64).sum())


def _answers(messages: Sequence[Any], kind: str, mark: str | None, of: str = "extractor") -> list[Arrays]:
    """The arrays of answers, all of them to the question with this mark, or to one and the same."""
    if isinstance(messages, Mapping):
        messages = [messages]
    told = [opened(one, kind, f"{kind} {k}") for k, one in enumerate(messages)]
    if not told:
        raise FedfluxError(f"nobody sent {kind}")
    for k, one in enumerate(told):
        wanted = told[0].about.get(of) if mark is None else mark
        if one.about.get(of) != wanted:
            raise FedfluxError(f"{kind} {k} was made under another {of}: send clients the newest, and ask them again")
    return [one.arrays for one in told]


def _refuse(kind: str, faults: Sequence[str | None], numbers: Sequence[int] | None = None) -> None:
    """The first answer that is wrong, by its number."""
    for k, fault in zip(range(len(faults)) if numbers is None else numbers, faults, strict=True):
        if fault is not None:
            raise FedfluxError(f"{kind} {k}: {fault}")
