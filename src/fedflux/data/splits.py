"""Cutting a test part off examples that come without one."""

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Examples
from fedflux.data.tasks.kinds import strata
from fedflux.streams import stream

Rows = NDArray[np.int64]
TEST_SHARE = 0.2


def stratified_test_rows(y: NDArray[np.int64], share: float, seed: int = 0) -> tuple[Rows, Rows]:
    """Train and test rows with `share` of every class in test; a class of one example stays in training."""
    rng = stream(seed, "stratified test split")
    train, test = [], []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cut = min(round(share * len(rows)), len(rows) - 1)
        test.append(rows[:cut])
        train.append(rows[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def whole_groups(group: Rows, y: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which records to cut off: whole groups, about `share` (below one half) of the records of every class.

    Groups come in random order, and one is taken where that brings the class counts nearer to those wanted. None is
    where every group is too large for that; all never are.
    """
    number = np.unique(group, return_inverse=True)[1].reshape(-1)
    held = np.zeros((number.max(initial=-1) + 1, y.max(initial=-1) + 1))
    np.add.at(held, (number, y), 1)
    missing = share * held.sum(axis=0)
    taken = np.zeros(len(held), bool)
    for one in rng.permutation(len(held)):
        rest = missing - held[one]
        if rest @ rest < missing @ missing:
            missing, taken[one] = rest, True
    return taken[number]


def hold_out(examples: Examples) -> tuple[Examples, Examples]:
    """Training and test part, 20 % of every class in test, cut within each client where clients are known.

    Where every class is too small for that, the 20 % (at least one example) are drawn across classes, so that only a
    client with a single example has no test part. Groups stay whole: about 20 % of each class, at least one group.
    Of several labels the rarest that a record has counts as its class.
    """
    owner = np.zeros(len(examples), np.int64) if examples.client is None else examples.client
    in_test = np.zeros(len(examples), bool)
    for client in np.unique(owner):
        rows = np.flatnonzero(owner == client)
        if examples.group is not None:
            in_test[rows] = _test_groups(examples.group[rows], strata(examples.y[rows]), int(client))
            continue
        _, chosen = stratified_test_rows(strata(examples.y[rows]), TEST_SHARE)
        if len(chosen) == 0 and len(rows) > 1:
            size = max(1, round(TEST_SHARE * len(rows)))
            chosen = stream(0, "test rows across classes", client=int(client)).permutation(len(rows))[:size]
        in_test[rows[chosen]] = True
    return _select(examples, ~in_test), _select(examples, in_test)


def _test_groups(group: Rows, y: NDArray[np.int64], client: int) -> NDArray[np.bool_]:
    chosen = whole_groups(group, y, TEST_SHARE, stream(0, "test groups", client=client))
    ids, sizes = np.unique(group, return_counts=True)
    return chosen if chosen.any() or len(ids) < 2 else group == ids[sizes.argmin()]


def _select(examples: Examples, mask: NDArray[np.bool_]) -> Examples:
    client = None if examples.client is None else examples.client[mask]
    group = None if examples.group is None else examples.group[mask]
    return Examples(examples.x[mask], examples.y[mask], client, group)
