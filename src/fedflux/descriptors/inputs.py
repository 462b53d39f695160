"""S0: what inputs are like, so that everyone scales them alike (`data/scaling.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.data.scaling import Spread
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.privacy import spread, units
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.queries import AskedAlone
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays, operation

Array = NDArray[np.generic]
LARGEST = float(np.finfo(np.float32).max)
"""What a model can be given."""


@operation("input-spread")
@dataclass(frozen=True)
class AskSpread(AskedAlone):
    """How many training inputs a client holds, and mean and sum of squares of every feature about it."""

    features: int
    positions: int = 1
    """Numbers of a feature in one input."""

    def passes(self) -> Sequence[Pass]:
        """None: no model is needed."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """Three numbers a feature."""
        if not held.size("train"):
            raise NothingToTellError("it holds no training examples")
        own = Spread.of(held.inputs("train"))
        return {"count": own.count, "mean": own.mean, "squares": own.squares}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Another number of features, or numbers that cannot be: a client weighs what the inputs that it holds do."""
        if set(answer) != {"count", "mean", "squares"}:
            return "it does not tell count, mean and squares of its inputs"
        if any(one.shape != (self.features,) or one.dtype != np.float64 for one in answer.values()):
            return f"it does not tell of {self.features} features"
        if not all(np.isfinite(one).all() for one in answer.values()):
            return "what it tells of its inputs is not finite"
        told = read_spread(answer)
        if (told.squares < 0).any() or (told.count < 1).any() or (np.abs(told.mean) > LARGEST).any():
            return "what it tells of its inputs cannot be"
        if (told.count > self.positions * about.examples["train"]).any():
            return "it tells of more inputs than it holds"
        if (told.squares > told.count * (2 * LARGEST) ** 2).any():
            return "what it tells of its inputs cannot be"
        return None


def read_spread(answer: Arrays) -> Spread:
    """Of one client's answer."""
    return Spread(*(answer[name].astype(np.float64) for name in ("count", "mean", "squares")))


@dataclass(frozen=True)
class _AskPrivately(AskedAlone):
    """One of both noisy releases from which inputs are scaled."""

    features: int
    privacy: Privacy

    def __post_init__(self) -> None:
        if not (self.privacy.scaling and self.privacy.mechanism == "gaussian"):
            raise FedfluxError("these sums need a budget of which a share is theirs, and gaussian noise")

    def passes(self) -> Sequence[Pass]:
        """None: no model is needed."""
        return ()

    def _records(self, held: Holding) -> Array:
        """Those that enter: no copies, and one of each group where groups are protected."""
        if not held.size("train"):
            raise NothingToTellError("it holds no training examples")
        chosen = units.chosen("train", self.privacy)(held)
        inputs = held.inputs("train")
        return inputs if chosen is None else inputs[chosen]

    def _fault(self, answer: Arrays, shape: tuple[int, int], about: About) -> str | None:
        fault = shape_fault(answer, {"sums": shape, "records": (1,)}, "its noisy sums of inputs")
        fault = fault or finite_fault(answer, "its noisy sums of inputs")
        if fault is None and not 1 <= float(answer["records"][0]) <= about.examples["train"]:
            return "its noisy sums are of more records than it holds, or of none"
        return fault


@operation("input-octaves")
@dataclass(frozen=True)
class AskOctaves(_AskPrivately):
    """How many training inputs lie in every octave of size, by feature, with noise."""

    charges: ClassVar[frozenset[str]] = frozenset({"scaling octaves"})

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """(features, octaves) and the public number of records."""
        records = self._records(held)
        sums = spread.octave_sums(records)
        told = spread.noisy(sums, spread.octaves_sensitivity(self.features), self.privacy)
        return {"sums": told, "records": np.array([len(records)], dtype=np.float64)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Another form, or of more records than there are."""
        return self._fault(answer, (self.features, spread.OCTAVES), about)


@operation("input-sums")
@dataclass(frozen=True)
class AskSums(_AskPrivately):
    """Sums of training inputs within a reach, and of their squares, by feature, with noise."""

    reach: NDArray[np.float64]
    charges: ClassVar[frozenset[str]] = frozenset({"scaling sums"})

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """(2, features) and the public number of records."""
        records = self._records(held)
        sums = spread.clipped_sums(records, self.reach)
        told = spread.noisy(sums, spread.sums_sensitivity(self.features), self.privacy)
        return {"sums": told, "records": np.array([len(records)], dtype=np.float64)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Another form, or of more records than there are."""
        return self._fault(answer, (2, self.features), about)


def read_sums(answer: Arrays) -> tuple[NDArray[np.float64], int]:
    """The noisy sums of one client's answer, and of how many records they are."""
    return answer["sums"].astype(np.float64), int(answer["records"][0])
