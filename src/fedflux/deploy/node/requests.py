"""What a server asks of a node: registered operations, so that they travel as a name, a revision and plain values.

A method's own operations (a rule, a query, a preparation, an adaptation) travel inside of them in the same way. Models
are named by their digests and travel beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Federation, Split
from fedflux.data.scaling import Scaling
from fedflux.engine.base import Job, Key
from fedflux.engine.training import Training
from fedflux.operations import Packed, operation, pack, unpack


@dataclass(frozen=True, eq=False)
class Sent:
    """An operation of a method inside a request."""

    name: str
    revision: int
    arrays: Mapping[str, NDArray[np.generic]]
    outline: str

    @staticmethod
    def of(thing: Any) -> "Sent":
        """An operation on its way."""
        packed = pack(thing)
        return Sent(packed.name, packed.revision, packed.arrays, dumps(packed.outline))

    @staticmethod
    def maybe(thing: Any) -> "Sent | None":
        """The same where there is one."""
        return None if thing is None else Sent.of(thing)

    def open(self) -> Any:
        """The operation again; what is not known here is refused in words."""
        return unpack(Packed(self.name, self.revision, self.arrays, loads(self.outline)))


@dataclass(frozen=True)
class Asked:
    """Who is asked, in which run and round, with which model, and about which part of its data."""

    run: str
    model: str
    client: int
    round: int
    most: int | None = None
    part: tuple[int, int, int] | None = None
    scaling: Scaling | None = None
    """How inputs are scaled, once that is settled."""

    def cohort(self, federation: Federation) -> Cohort:
        """The client alone, with that part of its data."""
        federation = federation if self.scaling is None else federation.scaled(self.scaling)
        found = federation.at(self.round)
        found = found if self.most is None else found.limited(self.most)
        found = found if self.part is None else found.chunks(*self.part)
        return Cohort(found, (self.client,), self.round)


@operation("hello")
@dataclass(frozen=True)
class Hello:
    """Who is there, and what does it hold? What it kept in this round or later is of a run that was cut off."""

    run: str
    round: int


@operation("train")
@dataclass(frozen=True, eq=False)
class Train:
    """Local training; jobs name the models of this request by place."""

    asked: Asked
    models: tuple[str, ...]
    jobs: tuple[Job, ...]
    training: Training
    key: Key
    rule: Sent | None = None
    preparation: Sent | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def begins_from(self, held: set[str]) -> set[str]:
        """The models that are needed where these slots of the client are filled."""
        if self.preparation is not None:
            return set(self.models)
        slots = [
            (job.models, job.own if job.own and not job.layers else (None,) * len(job.models)) for job in self.jobs
        ]
        pairs = [pair for one in slots for pair in zip(*one, strict=True)]
        return {self.models[row] for row, slot in pairs if slot not in held}


def sent_back(job: Job) -> int:
    """How many of a job's models come back."""
    return sum(job.sent)


@dataclass(frozen=True, eq=False)
class Mixture:
    """One client's row of a predictor: weights of the request's models, then of the client's slots."""

    weights: tuple[float, ...]
    slots: tuple[str, ...] = ()
    blended: bool = False
    adaptation: Sent | None = None
    layers: tuple[str, ...] = ()
    """The tensors that are personal, where slots do not hold whole models."""
    base: int = 0
    """The model of the request whose other tensors go with them."""


@operation("evaluate")
@dataclass(frozen=True, eq=False)
class Evaluate:
    """The accuracy of each mixture on a part of the client's data."""

    asked: Asked
    models: tuple[str, ...]
    split: Split
    mixtures: tuple[Mixture, ...]


@operation("ask")
@dataclass(frozen=True, eq=False)
class Ask:
    """A query about data."""

    asked: Asked
    models: tuple[str, ...]
    query: Sent
    features: Split | None = None
    """The part whose images alone are asked about; None: all that the client holds, with labels."""


@operation("copy_slot")
@dataclass(frozen=True)
class CopySlot:
    """Keep the model of one slot in another, too."""

    asked: Asked
    source: str
    target: str


@operation("hand_out")
@dataclass(frozen=True, eq=False)
class HandOut:
    """What the client answers with from now on, and where it was placed, in JSON."""

    asked: Asked
    models: tuple[str, ...]
    mixture: Mixture
    placed: str
