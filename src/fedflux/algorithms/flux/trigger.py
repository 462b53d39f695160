"""When to look for clusters: the paper's C(r), or early, and again as the model learns.

The paper clusters once, when C(r) says that the global model has stopped improving quickly. On hard data that is the
case from the start, on a model that knows nothing; on easy data rounds pass in which clusters could have been trained.
So the default looks early, and again whenever the rounds have doubled: a handful of descriptions in a run.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.sharing.branches import TRUNK, Branches
from fedflux.engine import Stack

FIRST_ROUND = 3
"""The round after which clusters are looked for first, by C(r) at the earliest."""
LAST_SHARE = 0.8
THRESHOLD = 0.06
AGAIN = 2
"""The next look comes once so many times as many rounds have passed."""
LAST_LOOK = 0.6
"""The share of the rounds after which nobody is asked any more: new clusters need rounds to learn in."""
PRESENT = 0.9
"""The share of described clients that must be there to be described again."""


def should_cluster(accuracies: Sequence[float], rounds: int, threshold: float = THRESHOLD) -> bool:
    """C(r) after r = len(accuracies) rounds of R = `rounds`; accuracies are the global model's, 0 to 1, one a round.

    True if r ≥ 3 and either some improvement A(r′) − A(r′ − 1) with 3 ≤ r′ ≤ r fell below T, or r ≥ 0.8·R.
    """
    r = len(accuracies)
    if r < FIRST_ROUND:
        return False
    improvements = [accuracies[i] - accuracies[i - 1] for i in range(FIRST_ROUND - 1, r)]
    return min(improvements) < threshold or r >= LAST_SHARE * rounds


def first_look(rounds: int) -> int:
    """The round after which clusters are looked for first, of so many rounds in all."""
    return max(min(FIRST_ROUND, rounds - 1), 1)


def due(round: int, looks: Sequence[int], rounds: int) -> bool:
    """Whether to look again before the training of a round, where the looks so far came after these rounds."""
    return round - 1 >= AGAIN * looks[-1] and round - 1 <= LAST_LOOK * rounds


def common_model(branches: Branches, sizes: NDArray[np.int64]) -> Stack:
    """One model whose features describe everyone: the mean over clients of the models that share a trunk, or of the
    clusters' own where none do.
    """
    stack = branches.stacks.get(TRUNK, branches.models)
    return stack.average(np.maximum(sizes, 1e-9)[None].astype(np.float64))


def same_partition(first: NDArray[np.int64], second: NDArray[np.int64]) -> bool:
    """Whether two lists of labels put the same clients together."""
    pairs = len(set(zip(first.tolist(), second.tolist(), strict=True)))
    return pairs == len(np.unique(first)) == len(np.unique(second))
