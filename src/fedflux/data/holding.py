"""What one client sees of its own data when it is asked something: the only place where data becomes an answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data.cohort import Cohort
from fedflux.data.labelled import Features, Labelled, Split

Positions = NDArray[np.int64]


class Holding(Protocol):
    """One client's own view of what it holds."""

    @property
    def client(self) -> int:
        """Its number."""

    @property
    def classes(self) -> int:
        """The number of labels, 0 where nobody knows."""

    def size(self, split: Split) -> int:
        """How many examples, copies included."""

    def copies(self, split: Split) -> int:
        """How often each stored example is held."""

    def rows(self, split: Split) -> NDArray[np.int64]:
        """What each stored example is a copy of: equal numbers are equal examples."""

    def groups(self, split: Split) -> NDArray[np.int64] | None:
        """The group of each stored example (a patient, a recording, a device), None where the data knows of none."""

    def inputs(self, split: Split) -> NDArray[np.generic]:
        """The inputs as the client has them, before they are scaled."""

    def scaled(self, split: Split) -> Tensor:
        """The stored inputs as models are given them."""

    def labels(self, split: Split) -> NDArray[np.int64]:
        """The labels of the stored examples; a client without labels has none to tell."""

    def data(self, split: Split) -> Labelled:
        """The examples themselves."""


@dataclass(frozen=True, eq=False)
class ClientHolding:
    """A client of a federation."""

    cohort: Cohort
    client: int

    @property
    def classes(self) -> int:
        """Of the federation."""
        return self.cohort.federation.classes

    def size(self, split: Split) -> int:
        """How many examples, copies included."""
        return self.cohort.federation.size(self.client, split)

    def copies(self, split: Split) -> int:
        """How often each stored example is held."""
        return self.cohort.federation.copies(split)

    def rows(self, split: Split) -> NDArray[np.int64]:
        """The source rows of the stored examples."""
        return self.cohort.federation.source_rows(self.client, split)

    def groups(self, split: Split) -> NDArray[np.int64] | None:
        """As the data gives them."""
        return self.cohort.federation.groups(self.client, split)

    def inputs(self, split: Split) -> NDArray[np.generic]:
        """As its pattern shows them."""
        return self.cohort.federation.inputs(self.client, split)

    def scaled(self, split: Split) -> Tensor:
        """As tensors, without labels."""
        return self.cohort.data(self.client, split).x

    def labels(self, split: Split) -> NDArray[np.int64]:
        """As the client gives them."""
        return self.cohort.federation.labels(self.client, split)

    def data(self, split: Split) -> Labelled:
        """As tensors."""
        return self.cohort.data(self.client, split)


@dataclass(frozen=True, eq=False)
class LooseHolding:
    """Images that belong to no federation: the same answer for whatever split is asked, and no labels."""

    features: Features
    client: int
    classes: int = 0
    group: NDArray[np.int64] | None = None

    def size(self, split: Split) -> int:
        """How many images, copies included."""
        return len(self.features)

    def copies(self, split: Split) -> int:
        """How often each image is held."""
        return self.features.copies

    def rows(self, split: Split) -> NDArray[np.int64]:
        """A number for every image, the same for equal ones."""
        return np.array([hash(image.tobytes()) for image in self.features.x.cpu().numpy()], dtype=np.int64)

    def groups(self, split: Split) -> NDArray[np.int64] | None:
        """As they were given."""
        return self.group

    def inputs(self, split: Split) -> NDArray[np.generic]:
        """They came scaled."""
        raise ValueError("these inputs were scaled before they came")

    def scaled(self, split: Split) -> Tensor:
        """As they came."""
        return self.features.x

    def labels(self, split: Split) -> NDArray[np.int64]:
        """There are none."""
        raise ValueError("this client has no labels")

    def data(self, split: Split) -> Labelled:
        """There are no labelled examples."""
        raise ValueError("this client has no labels")


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of a client's examples through the encoder: a statistic of the latents of one split."""

    split: Split
    statistic: Any
    """What sums the latents up, batch by batch (`engine.base.Statistic`)."""
    labelled: bool = True
    chosen: Callable[[Holding], Positions | None] | None = None
    """Which stored examples enter, None for all; without it, all do. A client with none of them is passed over."""


class NothingToTellError(Exception):
    """A client holds nothing that it is asked about; the message says what it lacks."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a client has computed for a query: a summary for each pass, None where it holds nothing, and losses."""

    sums: Sequence[Any]
    losses: NDArray[np.float32] | None = None
    """(models × samples, copies too), where the query asks for losses; they stay here."""


@dataclass(frozen=True, eq=False)
class About:
    """What a server knows of a client when it checks an answer."""

    examples: Mapping[Split, int]
    """As the client declared them."""
    classes: int
    whole: bool = True
    """Whether it was asked about all of them, and not only about a part."""
