"""Federations of data that is handed in from Python: clients by name, arrays, torch datasets."""

from time import perf_counter

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import fedflux
from fedflux import Federation
from fedflux.data.dataset import UNLABELLED
from fedflux.data.scaling import PIXELS, UNASKED, UNCHANGED

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(X[place]), int(Y[place])


class Stream(IterableDataset[tuple[np.ndarray, int]]):
    def __iter__(self):
        return iter([(X[k], Y[k]) for k in range(len(X))])


def everything(federation: Federation, client: int) -> set[tuple[float, ...]]:
    """A client's inputs of all splits, and their labels, as they came."""
    found = set()
    for split in ("train", "validation", "test"):
        pairs = zip(federation.inputs(client, split), federation.labels(client, split), strict=True)
        found |= {(*np.asarray(x, np.float32).tolist(), int(y)) for x, y in pairs}
    return found


FORMS = {
    "arrays": (X, Y),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "tensors in a list": (list(torch.tensor(X)), Y.astype(float)),
    "a table": (pd.DataFrame(X), pd.Series(Y)),
    "map style": Pairs(),
    "iterable": Stream(),
    "tensor dataset": TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "a list of pairs": [(X[k], Y[k]) for k in range(len(X))],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_records(form: str) -> None:
    federation = Federation.from_clients({"plain": (X, Y), form: FORMS[form]})
    assert federation.names == ("plain", form)
    assert everything(federation, 1) == everything(federation, 0)
    assert len(everything(federation, 0)) == len(X)
    assert federation.dataset.scaling == UNASKED
    assert (federation.input_shape, federation.class_names) == ((3,), ("0", "1"))


def test_clients_stay_in_the_order_given_and_keep_their_names() -> None:
    federation = Federation.from_clients({"Łódź": (X, Y), 7: (X, Y), "a": (X, Y)}, class_names=["ill", "well"])
    assert (federation.names, federation.class_names) == (("Łódź", "7", "a"), ("ill", "well"))


def test_clients_without_labels_and_clients_of_the_test_alone_are_held_out() -> None:
    federation = Federation.from_clients(
        {"quiet": (X, None), "a": (X, Y), "b": (X, Y)}, test={"late": (X[:5], Y[:5]), "mute": (X[:4], None)}
    )
    dataset = federation.dataset
    assert federation.names == ("a", "b")
    assert dataset.client_names == ("quiet", "a", "b", "late", "mute")
    assert dataset.test.client is not None
    counts = dict(zip(*(part.tolist() for part in np.unique(dataset.test.client, return_counts=True)), strict=True))
    assert counts == {0: 20, 1: 4, 2: 4, 3: 5, 4: 4}
    quiet = np.isin(dataset.test.client, [0, 4])
    assert (dataset.test.y[quiet] == UNLABELLED).all()
    assert (dataset.test.y[~quiet] != UNLABELLED).all()


def test_a_test_part_is_taken_as_given() -> None:
    federation = Federation.from_clients({"a": (X, Y), "b": (X, Y)}, test={"b": (X[:5], Y[:5]), "a": (X[:3], Y[:3])})
    assert [federation.size(k, "test") for k in range(2)] == [3, 5]
    assert [federation.size(k, "train") + federation.size(k, "validation") for k in range(2)] == [20, 20]


def test_groups_are_told_apart_by_client_and_stay_whole() -> None:
    ids = np.repeat(["p", "q", "r", "s", "t"], 4)
    federation = Federation.from_clients({"a": (X, Y), "b": (X, Y), "c": (X, Y)}, groups={"a": ids, "b": ids})
    seen = []
    for client in range(3):
        groups = [federation.groups(client, split) for split in ("train", "validation", "test")]
        sets = [set(one.tolist()) for one in groups if one is not None]
        assert sets[0] | sets[1] | sets[2] == set().union(*sets)
        assert not sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]
        seen.append(set().union(*sets))
    assert [len(one) for one in seen] == [5, 5, 20]
    assert not seen[0] & seen[1]


def test_true_clusters_are_for_those_who_may_read_them() -> None:
    federation = Federation.from_clients({"a": (X, Y), "b": (X, Y), "c": (X, Y)}, clusters={"a": 1, "b": "x", "c": 1})
    assert federation.truth is not None
    assert federation.truth[0] == federation.truth[2] != federation.truth[1]


@pytest.mark.parametrize(
    ("x", "scale", "scaling", "shape"),
    [
        (np.zeros((20, 4, 5), np.uint8), "auto", PIXELS, (1, 4, 5)),
        (np.zeros((20, 4, 5, 3), np.uint8), "auto", PIXELS, (3, 4, 5)),
        (np.zeros((20, 6, 128)), "auto", UNASKED, (6, 128)),
        (np.zeros((20, 2, 3, 4, 5)), "auto", UNASKED, (2, 3, 4, 5)),
        (np.zeros((20, 9), int), "none", UNCHANGED, (9,)),
    ],
)
def test_inputs_of_any_shape(x, scale, scaling, shape) -> None:
    federation = Federation.from_clients({"a": (x, Y), "b": (x, Y)}, scale=scale)
    assert (federation.input_shape, federation.dataset.scaling) == (shape, scaling)


def test_arrays_with_a_column_of_clients() -> None:
    client = np.repeat(["n", "s"], 10)
    federation = Federation.from_arrays(X, [["sick", "sound"][y] for y in Y], client, group=np.arange(20) // 2)
    assert (federation.names, federation.class_names) == (("n", "s"), ("sick", "sound"))
    groups = federation.groups(0, "train")
    assert groups is not None
    assert len(set(groups.tolist())) * 2 == len(groups)


@pytest.mark.parametrize(
    "labels", [[np.nan] * 10 + Y[10:].tolist(), [None] * 10 + Y[10:].tolist(), [""] * 10 + ["a", "b"] * 5]
)
def test_arrays_of_which_a_client_has_no_labels(labels) -> None:
    federation = Federation.from_arrays(X, labels, np.repeat(["n", "s"], 10))
    assert federation.names == ("s",)
    assert federation.classes == 2
    assert (federation.dataset.test.y == UNLABELLED).sum() == 10


def test_arrays_without_clients_are_dealt() -> None:
    federation = Federation.from_arrays(np.tile(X, (10, 1)), np.tile(Y, 10))
    assert (len(federation), federation.names) == (10, None)


def test_large_labels_make_no_classes() -> None:
    federation = Federation.from_clients({"a": (X, 1_000_000 * Y), "b": (X, 1_000_000 * Y)})
    assert (federation.classes, federation.class_names) == (2, ("0", "1000000"))


def test_tables_are_put_together_by_the_names_of_their_columns() -> None:
    one = pd.DataFrame(X, columns=["age", "weight", "height"])
    clients = {"a": (one, Y), "b": (one[["height", "age", "weight"]], Y), "c": (X, Y)}
    federation = Federation.from_clients(clients, test={"a": (one[["weight", "height", "age"]], Y)})
    assert federation.dataset.feature_names == ("age", "weight", "height")
    assert everything(federation, 0) == everything(federation, 1) == everything(federation, 2)
    whole = Federation.from_arrays(
        one, Y, ["a", "b"] * 10, x_test=one[["weight", "height", "age"]], y_test=Y, client_test=["a", "b"] * 10
    )
    assert whole.dataset.feature_names == ("age", "weight", "height")
    assert everything(whole, 0) | everything(whole, 1) == everything(federation, 0)


def test_columns_without_names_are_taken_in_their_order() -> None:
    federation = Federation.from_clients({"a": (pd.DataFrame(X), Y), "b": (X, Y)})
    assert federation.dataset.feature_names is None


def test_a_large_label_takes_no_longer_than_a_small_one(tmp_path) -> None:
    """Nothing is made of as many numbers as the largest label has."""
    begin = perf_counter()
    big = {"a": (X, 10**15 * Y), "b": (X, 10**15 * Y - 7)}
    result = fedflux.run(Federation.from_clients(big), rounds=1, progress=False, device="cpu", out=tmp_path / "run")
    assert result["class_names"] == ["-7", "0", "999999999999993", "1000000000000000"]
    assert perf_counter() - begin < 30
