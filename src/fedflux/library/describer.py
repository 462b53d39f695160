"""The client's side of FLUX in a loop of one's own: what its records say, as small arrays to be sent."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.describe import scatter_of
from fedflux.clustering.placement.queries import AskPlacement, AskTries
from fedflux.descriptors.queries import AskBounds, AskDescriptor
from fedflux.errors import FedfluxError
from fedflux.library.messages import Message, mark_of, opened_question, sealed
from fedflux.library.records import ArrayHolding, Encode, Records


class Describer:
    """Describes one client's records: no engine, no federation, arrays only.

    Everything that leaves is a dictionary of small arrays; no number of a single record is among them.

    Parameters
    ----------
    encode : callable, optional
        From a batch of records to their latents, a row a record: a torch module (put into evaluation mode meanwhile),
        its `encode`, a JAX function, a scikit-learn `transform`. Without it the records are latents already.
    classes : int
        How many classes there are; labels are 0 to classes − 1.
    epsilon, delta : float, optional
        The privacy that this client insists on: it answers nothing that promises less, and describes itself no more
        often than promised. The choice of a cluster (`scores`) is made without noise.
    client : int, default=0
        The client's number: others draw other pieces of their records to try.
    seed : int, default=0
        Of these draws.

    Examples
    --------
    >>> d = Describer(classes=2)
    >>> sorted(d.bounds(np.random.default_rng(0).random((20, 5))))
    ['header', 'high', 'low']
    """

    def __init__(
        self,
        encode: Encode | None = None,
        *,
        classes: int,
        epsilon: float | None = None,
        delta: float = 1e-5,
        client: int = 0,
        seed: int = 0,
    ) -> None:
        if not isinstance(classes, int | np.integer) or classes < 1:
            raise FedfluxError(f"classes={classes}: give the number of classes")
        if encode is not None and not callable(encode):
            raise FedfluxError(f"encode is {type(encode).__name__}: give what makes latents of records, or none")
        self.encode = encode
        self.classes = classes
        self.epsilon = epsilon
        self.delta = delta
        self.client = client
        self.seed = seed
        self._releases = 0

    def bounds(self, x: Any) -> Message:
        """The range of every number of the latent: the first thing that the server needs."""
        self._insist("bounds are not protected: have the server make the extractor from public inputs")
        held = self._holding(train=Records(x))
        return sealed("bounds", held.answer(AskBounds(width=0)), classes=self.classes)

    def scatter(self, x: Any, y: Any, extractor: Message, *, group: Any = None) -> Message:
        """Sums that lead to a finer extractor, where there are few records a class."""
        self._insist("sums of scatter are not protected")
        asked = self._question(extractor)
        question = scatter_of(asked)
        held = self._holding(len(question.base.mean), train=self._labelled(x, y, group))
        return sealed("scatter", held.answer(question), extractor=mark_of(extractor, "extractor"))

    def describe(
        self,
        x: Any,
        y: Any,
        extractor: Message,
        *,
        group: Any = None,
        validation: Any = None,
        validation_group: Any = None,
    ) -> Message:
        """The descriptor: moments of the latents by class. Clusters are found from it.

        `group` says which records belong together (a patient, a recording); `validation` are records that the model
        has not trained on, and need no labels.
        """
        question = self._question(extractor)
        own = self._labelled(x, y, group, validation_group)
        parts = {"train": own}
        if validation is not None and len(validation):
            parts["validation"] = Records(validation, None, _numbered(validation, validation_group, group))
        held = self._holding(width_of(question), **parts)
        self._charge(question)
        return sealed("descriptor", held.answer(question), extractor=mark_of(extractor, "extractor"))

    def tries(self, x: Any, offer: Message, *, group: Any = None) -> Message:
        """How likely records that no model has trained on are in every cluster: the server learns from members, whose
        cluster it knows, how sure a placement may be.
        """
        self._insist("tries are not protected")
        asked = opened_question(offer, "offer", AskPlacement)
        mixtures = asked.offer.mixtures
        question = AskTries(asked.described, replace(mixtures, offset=np.zeros_like(mixtures.offset)), self.seed)
        held = self._holding(width_of(asked.described), validation=Records(x, None, _numbered(x, group)))
        return sealed("tries", held.answer(question), clusters=len(mixtures))

    def scores(self, x: Any, offer: Message, *, group: Any = None) -> Message:
        """Of an unlabelled client: how likely its records are from every cluster on offer, and whether from any."""
        asked = opened_question(offer, "offer", AskPlacement)
        held = self._holding(width_of(asked.described), test=Records(x, None, _numbered(x, group)))
        return sealed("scores", held.answer(asked), offer=mark_of(offer, "offer"))

    def _holding(self, width: int | None = None, **parts: Records) -> ArrayHolding:
        for name, part in parts.items():
            if not hasattr(part.x, "__len__"):
                raise FedfluxError(f"records are {type(part.x).__name__}: give a row a record")
            if not len(part):
                raise FedfluxError(f"the {name} part holds no record")
        return ArrayHolding(parts, self.encode, self.classes, self.client, width)

    def _labelled(self, x: Any, y: Any, group: Any, others: Any = None) -> Records:
        """Records with labels; groups are numbered together with those of the validation part."""
        labels = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
        if not hasattr(x, "__len__"):
            raise FedfluxError(f"records are {type(x).__name__}: give a row a record")
        if labels.shape != (len(x),):
            raise FedfluxError(f"{len(x)} records but labels of shape {labels.shape}: give one label a record")
        if labels.dtype.kind not in "biu" and not _whole(labels):
            raise FedfluxError(f"labels are {labels.dtype}: give numbers from 0 to {self.classes - 1}")
        labels = labels.astype(np.int64)
        if len(labels) and (labels.min() < 0 or labels.max() >= self.classes):
            odd = labels[(labels < 0) | (labels >= self.classes)][0]
            raise FedfluxError(f"label {odd} is outside 0 to {self.classes - 1}")
        return Records(x, labels, _numbered(x, group, others))

    def _question(self, extractor: Message) -> AskDescriptor:
        question = opened_question(extractor, "extractor", AskDescriptor)
        if question.classes != self.classes:
            raise FedfluxError(f"the extractor is for {question.classes} classes, and this client has {self.classes}")
        privacy = question.privacy
        if self.epsilon is None:
            return question
        if privacy is None or privacy.mechanism != "gaussian":
            raise FedfluxError(f"the extractor promises no privacy, and this client insists on ε = {self.epsilon:g}")
        if privacy.epsilon > self.epsilon or privacy.delta > self.delta:
            told = f"(ε, δ) = ({privacy.epsilon:g}, {privacy.delta:g})"
            own = f"({self.epsilon:g}, {self.delta:g})"
            raise FedfluxError(f"the extractor promises {told}; this client insists on {own}")
        return question

    def _insist(self, why: str) -> None:
        if self.epsilon is not None:
            raise FedfluxError(f"this client insists on ε = {self.epsilon:g}: {why}")

    def _charge(self, question: AskDescriptor) -> None:
        """Count a noisy release; one more than was promised is refused."""
        if question.privacy is None:
            return
        if self._releases >= question.privacy.releases:
            raise FedfluxError(
                f"this client described itself {self._releases} times, as often as its ε allows: send that again"
            )
        self._releases += 1


def _whole(labels: NDArray[Any]) -> bool:
    """Whether they are whole numbers, whatever type they have."""
    return labels.dtype.kind == "f" and bool((np.isfinite(labels) & (labels == np.round(labels))).all())


def width_of(question: AskDescriptor) -> int:
    """How long the latents are that an extractor reduces."""
    return len(question.projector.mean)


def _numbered(x: Any, group: Any, others: Any = None) -> NDArray[np.int64] | None:
    """Groups as numbers, those of another part numbered along with them."""
    if group is None:
        return None
    if len(group) != len(x):
        raise FedfluxError(f"{len(x)} records but {len(group)} groups: give one a record")
    names = np.asarray(group).astype(np.str_)
    known = np.unique(np.concatenate([names, np.asarray([] if others is None else others).astype(np.str_)]))
    return np.searchsorted(known, names).astype(np.int64)
