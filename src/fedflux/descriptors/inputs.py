"""S0: what inputs are like, so that everyone scales them alike (`data/scaling.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.data.scaling import Spread
from fedflux.descriptors.queries import AskedAlone
from fedflux.operations import Arrays, operation

Array = NDArray[np.generic]


@operation("input-spread")
@dataclass(frozen=True)
class AskSpread(AskedAlone):
    """How many training inputs a client holds, and mean and sum of squares of every feature about it."""

    features: int

    def passes(self) -> Sequence[Pass]:
        """None: no model is needed."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """Three numbers a feature."""
        if not held.size("train"):
            raise NothingToTellError("it holds no training examples")
        spread = Spread.of(held.inputs("train"))
        return {"count": spread.count, "mean": spread.mean, "squares": spread.squares}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Another number of features, or numbers that cannot be."""
        if set(answer) != {"count", "mean", "squares"}:
            return "it does not tell count, mean and squares of its inputs"
        if any(one.shape != (self.features,) or one.dtype != np.float64 for one in answer.values()):
            return f"it does not tell of {self.features} features"
        if not all(np.isfinite(one).all() for one in answer.values()):
            return "what it tells of its inputs is not finite"
        spread = read_spread(answer)
        if (spread.squares < 0).any() or (spread.count < 1).any():
            return "what it tells of its inputs cannot be"
        return None


def read_spread(answer: Arrays) -> Spread:
    """Of one client's answer."""
    return Spread(*(answer[name].astype(np.float64) for name in ("count", "mean", "squares")))
