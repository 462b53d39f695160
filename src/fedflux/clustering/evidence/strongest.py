"""Which of several tests speaks loudest, paid for: Bonferroni over the tests, and over classes within them."""

import numpy as np

from fedflux.clustering.evidence.pool import Array

PAID = np.log(3)
"""What the strongest of three tests, of single classes, of all together and of labels, pays for the choice; with those
of two classes, of leading directions and of spreads, it pays up to log(6)."""
MOST_PAID = np.log(6)
SURE = -1e-9
"""What a test that was made answers at most: one that was not, 0, is not paid for."""


def log_one(classes: Array) -> Array:
    """(P,): log p of the class that differs most, of the U that were compared: U·p."""
    tested = np.maximum((classes < 0).sum(axis=1), 1)
    return np.asarray(np.log(tested) + classes.min(axis=1))


def log_two(classes: Array) -> Array:
    """(P,): log p of two classes that both differ as much as the second of them does: U(U − 1)/2·p².

    Who exchanges labels changes two classes at least, and turned or coloured images seldom come in one class alone.
    What neither class shows by itself both may. Classes are independent, as in the test of all of them.
    """
    tested = (classes < 0).sum(axis=1)
    if classes.shape[1] < 2:
        return np.zeros(len(classes))
    second = np.partition(classes, 1, axis=1)[:, 1]
    pairs = np.maximum(tested * (tested - 1) / 2, 1)
    return np.where(tested >= 2, np.minimum(np.log(pairs) + 2 * second, SURE), 0.0)


def strongest(classes: Array, joint: Array, labels: Array, *more: Array) -> Array:
    """(P,): the least of all, paid for; of the tests after labels those that were made (whose log p is not 0)."""
    least = np.minimum.reduce([log_one(classes), joint, labels, *more])
    made = sum(((one < 0).astype(np.float64) for one in more), np.zeros(len(joint)))
    return np.asarray(np.minimum(PAID + np.log(1 + made / 3) + least, 0.0))
