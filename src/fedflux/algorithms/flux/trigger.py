"""When to cluster: the paper's C(r), once the global model's accuracy stops improving quickly."""

from collections.abc import Sequence

FIRST_ROUND = 3
LAST_SHARE = 0.8
THRESHOLD = 0.06


def should_cluster(accuracies: Sequence[float], rounds: int, threshold: float = THRESHOLD) -> bool:
    """C(r) after r = len(accuracies) rounds of R = `rounds`; accuracies are the global model's, 0 to 1, one a round.

    True if r ≥ 3 and either some improvement A(r′) − A(r′ − 1) with 3 ≤ r′ ≤ r fell below T, or r ≥ 0.8·R.
    """
    r = len(accuracies)
    if r < FIRST_ROUND:
        return False
    improvements = [accuracies[i] - accuracies[i - 1] for i in range(FIRST_ROUND - 1, r)]
    return min(improvements) < threshold or r >= LAST_SHARE * rounds
