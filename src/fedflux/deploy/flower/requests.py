"""What the server asks of a node: registered operations, so that they travel as a name, a revision and plain values.

A method's own operations (a rule, a query, a preparation, an adaptation) travel inside of them in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Federation, Split
from fedflux.deploy.flower.records import ARRAYS, ASK, digest, pack, unpack
from fedflux.engine.base import Job, Key, Training
from fedflux.operations import Packed, operation
from fedflux.operations import pack as taken_apart
from fedflux.operations import unpack as put_together


@dataclass(frozen=True, eq=False)
class Sent:
    """An operation of a method inside a request."""

    name: str
    revision: int
    arrays: Mapping[str, NDArray[np.generic]]
    outline: str

    @staticmethod
    def of(thing: Any) -> "Sent | None":
        """An operation on its way, None where there is none."""
        if thing is None:
            return None
        packed = taken_apart(thing)
        return Sent(packed.name, packed.revision, packed.arrays, dumps(packed.outline))

    def open(self) -> Any:
        """The operation again; what is not known here is refused in words."""
        return put_together(Packed(self.name, self.revision, self.arrays, loads(self.outline)))


@dataclass(frozen=True)
class Asked:
    """Who is asked, in which run and round, with which model, and about which part of its data."""

    run: str
    model: str
    client: int
    round: int
    most: int | None = None
    part: tuple[int, int, int] | None = None

    def cohort(self, federation: Federation) -> Cohort:
        """The client alone, with that part of its data."""
        found = federation.at(self.round)
        found = found if self.most is None else found.limited(self.most)
        found = found if self.part is None else found.chunks(*self.part)
        return Cohort(found, (self.client,), self.round)


@operation("hello")
@dataclass(frozen=True)
class Hello:
    """Who is there, and what does it hold? Models that it kept in this round or later are of a run that was cut off."""

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


def begins(job: Job) -> list[tuple[int, str | None]]:
    """Each model of a job with the slot that stands in for it."""
    return list(zip(job.models, job.own or (None,) * len(job.models), strict=True))


@dataclass(frozen=True, eq=False)
class Mixture:
    """One client's row of a predictor: weights of the request's models, then of the client's slots."""

    weights: tuple[float, ...]
    slots: tuple[str, ...] = ()
    blended: bool = False
    adaptation: Sent | None = None


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


def message_type(request: Any) -> str:
    """The kind of Flower message that carries a request."""
    name = taken_apart(request).name
    return name if name in ("train", "evaluate") else f"query.{name}"


def to_records(request: Any) -> dict[str, Any]:
    """A request as Flower's records; models go beside them."""
    packed = taken_apart(request)
    ask = ConfigRecord({"name": packed.name, "revision": packed.revision, "outline": dumps(packed.outline)})
    return {ASK: ask, **({ARRAYS: pack(packed.arrays)} if packed.arrays else {})}


def from_records(content: Any) -> Any:
    """The request again; a revision that is not ours is refused with both numbers."""
    ask = content[ASK]
    arrays = unpack(content[ARRAYS]) if ARRAYS in content else {}
    return put_together(Packed(str(ask["name"]), int(ask["revision"]), arrays, loads(str(ask["outline"]))))


def version(content: Any) -> str:
    """What an answer says it answers to: the content of the question."""
    ask = content[ASK]
    arrays = unpack(content[ARRAYS]) if ARRAYS in content else {}
    return digest(arrays, f"{ask['name']} {ask['revision']} {ask['outline']}")
