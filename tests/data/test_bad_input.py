"""What people hand in that cannot be meant: one line that says what, where and what would be right."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.data.making import error_of
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedflux import Federation

X = np.random.default_rng(0).normal(size=(10, 3))
Y = np.arange(10) % 2
GOOD = (X, Y)
HOLED = np.where(np.arange(30).reshape(10, 3) == 14, np.nan, X)
TEXT = pd.DataFrame({"age": X[:, 0], "city": ["Paris"] * 10})


class Odd(Dataset[Any]):
    """Item 3 is not like the others."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> Any:
        if place == 3 and isinstance(self.item, Exception):
            raise self.item
        return self.item if place == 3 else (X[place], int(Y[place]))


class Empty(IterableDataset[Any]):
    def __iter__(self):
        return iter(())


CLIENTS = [
    (X, "ndarray is no client; give (x, y)"),
    ([X, Y], "list is no client; give (x, y)"),
    ({"x": X, "y": Y}, "dict is no client; give (x, y)"),
    ((X, Y, Y), "tuple is no client"),
    (None, "NoneType is no client"),
    ((X[:0], Y[:0]), "client 'b': holds no record; leave the client out"),
    ((X, Y[:9]), "client 'b': 10 records in x but 9 labels in y"),
    ((X[:, :2], Y), "client 'b': inputs of shape (2,), but client 'a' has (3,)"),
    ((X[:, :, None, None, None], Y), "client 'b': inputs of shape (3, 1, 1, 1), but client 'a' has (3,)"),
    ((X[:, 0], Y), "client 'b': x has shape (10,); give (N, features), or more axes"),
    ((3.0, Y), "x has shape ()"),
    ((X.astype(np.uint8), Y), "client 'b': inputs of uint8, but client 'a' has float64; bytes are pixels"),
    (([[1, 2, 3], [1, 2]], [0, 1]), "client 'b': x holds lists of unequal length: pad or cut them"),
    ((np.array([[1, 2, 3], [1, 2]], object), [0, 1]), "lists of unequal length"),
    ((np.array([["1", "2", "3"]] * 10), Y), "holds <U1; give numbers"),
    ((np.array([["1", 2, 3.0]] * 10, object), Y), "client 'b': x holds str ('1'); give numbers"),
    ((np.array([[None, 2, 3.0]] * 10, object), Y), "client 'b': x holds NoneType ('None'); give numbers"),
    ((X + 1j, Y), "holds complex128; give numbers"),
    ((np.full((10, 3), "2020-01-01", "M8[D]"), Y), "holds datetime64[D]; give numbers"),
    ((HOLED, Y), "row 4 (client 'b') of 'x' holds NaN or infinite values; clean the data"),
    ((np.where(np.isnan(HOLED), np.inf, HOLED), Y), "row 4 (client 'b') of 'x' holds NaN or infinite values"),
    ((np.ma.array(X, mask=X > 0), Y), "client 'b': x has masked values; fill them"),
    ((TEXT, Y), "client 'b': column 'city' holds"),
    ((X, Y / 4), "label 0.25 of row 1 (client 'b') in 'y'; give integers or text"),
    ((X, Y.astype(str)), "client 'b': labels are text, but those of client 'a' are numbers; give one kind"),
    ((X, ["a", 1] * 5), "client 'b': labels in y are text and numbers mixed"),
    ((X, [[1, 2], [1]] * 5), "client 'b': y holds lists of unequal length"),
    ((X, [{}] * 10), "client 'b': labels in y are dict; give integers or text"),
    ((X, np.where(Y == 1, np.nan, 0)), "row 1 (client 'b') in 'y' has no label, though its client has others"),
    ((X, [0, None] * 5), "row 1 (client 'b') in 'y' has no label, though its client has others"),
    ((X, [float("inf")] * 10), "label inf of row 0 (client 'b')"),
    (DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4))), "a DataLoader gives batches; give its dataset"),
    (Odd((X[0, :2], 0)), "item 3 is float64 of shape (2,), but item 0 is float64 of shape (3,)"),
    (Odd((X[0].astype(int), 0)), "item 3 is int64 of shape (3,), but item 0 is float64 of shape (3,)"),
    (Odd((X[0], X[0], 0)), "item 3 is 3 things, not an input and a label; models take one input"),
    (Odd(X[0].tolist()), "item 3 is 3 things"),
    (Odd({"x": X[0], "y": 0}), "item 3 is a dict, not an input and a label; give (x, y)"),
    (Odd(((X[0], X[0, :2]), 0)), "item 3 holds lists of unequal length"),
    (Odd(("text", 0)), "item 3 is <U4 of shape ()"),
    (Odd((X[0], None)), "row 3 (client 'b') in 'y' has no label, though its client has others"),
    (Odd(OSError("disk gone")), "client 'b': the dataset fails: OSError: disk gone"),
    (Empty(), "client 'b': holds no record"),
    (TensorDataset(torch.zeros(0, 3), torch.zeros(0)), "client 'b': holds no record"),
]


@pytest.mark.parametrize(("client", "says"), CLIENTS, ids=[says[:50] for _, says in CLIENTS])
def test_a_client_that_cannot_be_meant(client: Any, says: str) -> None:
    message = error_of(lambda: Federation.from_clients({"a": GOOD, "b": client}))
    assert says in message
    assert message.startswith("from_clients")


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"clients": {}}, "no client was given"),
    ({"clients": [GOOD]}, "clients is a list; give a mapping from clients' names"),
    ({"clients": {1: GOOD, "1": GOOD}}, "client '1' is named twice in clients"),
    ({"clients": {"a": (X, None)}}, "nobody has labels to train with"),
    ({"groups": {"c": Y}}, "groups names 'c', which is no client"),
    ({"groups": {"a": Y[:4]}}, "client 'a': groups has shape (4,), but there are 10 records; give one each"),
    ({"groups": {"a": Y / 3}}, "client 'a': groups holds float64; give an integer or a text each"),
    ({"test_groups": {"a": Y}}, "test_groups names 'a', which is no client of test"),
    ({"clusters": {"a": 0}}, "clusters say nothing of client 'b'"),
    ({"test": {"a": (X[:, :1], Y)}}, "client 'a', test part: inputs of shape (1,), but client 'a' has (3,)"),
    ({"test": {"a": (X, None)}, "clients": {"a": (X, None), "b": GOOD}, "x": 0}, "unexpected keyword"),
    ({"test": {"a": GOOD}, "clients": {"a": (X, None), "b": GOOD}}, "client 'a' has labels in its test part and other"),
    ({"test": GOOD}, "test is a tuple; give a mapping"),
    ({"class_names": ["only"]}, "label 1 has no name among the 1 class_names"),
    ({"class_names": ["same", "same"]}, "a name stands twice in class_names"),
    ({"class_names": "ab"}, "class_names is one text; give a list of names"),
    ({"scale": "pixel"}, "scale 'pixel'"),
]


@pytest.mark.parametrize(("arguments", "says"), ARGUMENTS, ids=[says[:50] for _, says in ARGUMENTS])
def test_arguments_that_do_not_fit(arguments: dict[str, Any], says: str) -> None:
    if says == "unexpected keyword":
        with pytest.raises(TypeError, match=says):
            Federation.from_clients(**{"clients": {"a": GOOD, "b": GOOD}, **arguments})
        return
    assert says in error_of(lambda: Federation.from_clients(**{"clients": {"a": GOOD, "b": GOOD}, **arguments}))


ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({"y": None}, "y is None; give labels"),
    ({"y": Y[:4]}, "10 examples in 'x' but 4 in 'y'"),
    ({"client": [0, 1]}, "client has shape (2,), but there are 10 records"),
    ({"client": X[:, 0]}, "client holds float64; give an integer or a text each"),
    ({"client": Y, "client_names": ["0"]}, "client '1' is not among client_names"),
    ({"client": Y, "client_names": ["0", "0"]}, "client '0' is named twice"),
    (
        {"client": Y, "client_names": ["0", "1", "2"]},
        "client '2' has no record to train with; give it some",
    ),
    ({"client": Y, "x_test": X, "y_test": Y}, "'client_test' is missing"),
    ({"y_test": Y}, "y_test without x_test"),
    ({"y": np.where(Y == 1, np.nan, 0)}, "row 1 in 'y' has no label; clients without labels need names"),
    (
        {"client": Y, "x_test": X[:, :2], "y_test": Y, "client_test": Y},
        "shape (2,) in 'x_test', but training",
    ),
    ({"x": HOLED, "client": list("ab") * 5}, "row 4 (client 'a') of 'x' holds NaN"),
    ({"client": Y, "cluster": Y[::-1], "group": Y[:2]}, "group has shape (2,)"),
    ({"client": Y, "cluster": np.arange(10)}, "client '0' lies in clusters 0 and 2; a client has one cluster"),
]


@pytest.mark.parametrize(("arguments", "says"), ARRAYS, ids=[says[:50] for _, says in ARRAYS])
def test_arrays_that_do_not_fit(arguments: dict[str, Any], says: str) -> None:
    assert says in error_of(lambda: Federation.from_arrays(**{"x": X, "y": Y, **arguments}))


NAMED = pd.DataFrame(X, columns=["age", "weight", "height"])


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (NAMED[["age", "weight"]], "client 'b': column 'height' is missing; all tables have the same columns"),
        (NAMED.assign(sugar=1), "client 'b': column 'sugar' is in no other table"),
        (NAMED.rename(columns={"height": "size"}), "client 'b': column 'height' is missing"),
        (NAMED[["age", "weight", "height", "age"]], "client 'b': column 'age' is there twice"),
    ],
)
def test_tables_of_unlike_columns(table: Any, says: str) -> None:
    assert says in error_of(lambda: Federation.from_clients({"a": (NAMED, Y), "b": (table, Y)}))


HEAD = "age,client,label\n"
BODY = "".join(f"{k},c{k % 2},{k % 2}\n" for k in range(8))
TABLES: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "is empty; the first line names the columns"),
    (HEAD, {}, "holds no record below its first line"),
    (HEAD + BODY + "1,a\n", {}, "own.csv, line 10: 2 cells, but the first line names 3 columns"),
    (HEAD + "1,a,0,7\n" + BODY, {}, "own.csv, line 2: 4 cells"),
    (HEAD + '1,"a,0\n' + BODY, {}, "own.csv, line 10: no CSV"),
    (HEAD + '1,"a"b,0\n' + BODY, {}, "own.csv, line 2: no CSV"),
    (HEAD + BODY + "old,c1,0\n", {}, "line 10 (client 'c1'): column 'age' holds text ('old'); encode the column"),
    (HEAD + BODY + ",c1,0\n", {}, "line 10 (client 'c1'): column 'age' is empty; fill it or drop the line"),
    (HEAD + BODY + "nan,c1,0\n", {}, "line 10 (client 'c1'): column 'age' holds nan"),
    (HEAD + BODY + "3,,0\n", {}, "line 10: column 'client' is empty"),
    (HEAD + BODY + "3,c1,\n", {}, "line 10 (client 'c1') in 'y' has no label, though its client has others"),
    (HEAD + BODY + "3,c1,0.5\n", {"label": "years"}, "unknown column 'years'"),
    (HEAD + BODY, {"client": "hospital"}, "unknown column 'hospital'"),
    (HEAD + BODY, {"features": ["aeg"]}, "unknown column 'aeg': did you mean 'age'?"),
    (HEAD + BODY, {"features": ["label"]}, "column 'label' is no input: it says the label"),
    (HEAD + BODY, {"features": "age"}, "features is one text; give a list of columns"),
    (HEAD + BODY, {"group": "client"}, "column 'client' cannot be both client and group"),
    (
        "age,client,label,part\n" + BODY.replace("\n", ",all\n"),
        {},
        "line 2: column 'part' is 'all'; give train",
    ),
    (HEAD + BODY, {"test": "missing.csv"}, "missing.csv: cannot be read: No such file"),
    (",client,label\n" + BODY, {}, "column 1 has no name; name it (pandas writes such a column unless index=False)"),
    ("label,client,label\n" + BODY, {}, "two columns are called 'label'"),
    ("age,client,outcome\n" + BODY, {}, "unknown column 'label'"),
    ("client,label\n" + "".join(f"c{k % 2},{k % 2}\n" for k in range(8)), {}, "has no column of inputs"),
]


@pytest.mark.parametrize(("text", "arguments", "says"), TABLES, ids=[says[:50] for _, _, says in TABLES])
def test_tables_that_cannot_be_meant(tmp_path: Path, text: str, arguments: dict[str, Any], says: str) -> None:
    (tmp_path / "own.csv").write_text(text, encoding="utf-8")
    message = error_of(lambda: Federation.from_csv(tmp_path / "own.csv", **arguments))
    assert says in message
    assert "own.csv" in message or "missing.csv" in message


def test_tables_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(b"age,label\n\xff\xfe,1\n")
    assert "is not UTF-8 text" in error_of(lambda: Federation.from_csv(tmp_path / "own.csv"))
    (tmp_path / "test.csv").write_text("height,client,label\n1,c0,0\n")
    (tmp_path / "own.csv").write_text(HEAD + BODY)
    call = error_of(lambda: Federation.from_csv(tmp_path / "own.csv", test=tmp_path / "test.csv"))
    assert "test.csv: column 'age' of own.csv is missing" in call


def columns(**more: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": X.tolist(), "client": ["a", "b"] * 5, "label": Y[::-1].tolist(), **more})


def streamed(_: Any) -> Any:
    return columns().to_iterable_dataset()


HUGGING: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"client": "hospital"}, "unknown column 'hospital'"),
    ({}, {"label": "lable"}, "unknown column 'lable': did you mean 'label'?"),
    ({}, {"features": ["y"]}, "unknown column 'y'"),
    ({"age": Y.tolist()}, {}, "column 'x' holds (3,) numbers a row; with several columns each holds one"),
    ({"x": ["a"] * 10}, {}, "column 'x' holds <U1; encode it as numbers"),
    ({"x": [[1], [1, 2]] * 5}, {}, "column 'x' holds lists of unequal length"),
    ({"label": [0, None] * 5, "client": ["a", "a"] * 5}, {}, "row 1 (client 'a') in 'y' has no label"),
]


@pytest.mark.parametrize(("rows", "arguments", "says"), HUGGING, ids=[says[:50] for _, _, says in HUGGING])
def test_hugging_face_datasets_that_do_not_fit(rows: Any, arguments: Any, says: str) -> None:
    assert says in error_of(lambda: Federation.from_huggingface(columns(**rows), **arguments))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: columns().to_iterable_dataset(), "IterableDataset has no rows to read"),
        (lambda: {"rain": columns()}, "a split 'rain'; name splits train, validation and test"),
        (lambda: {"test": columns()}, "the training split holds no row"),
        (lambda: columns().select([]), "the training split holds no row"),
        (lambda: [1, 2], "list has no rows to read"),
        (lambda: {"train": columns(), "test": columns(z=list(Y))}, "the splits have different columns"),
    ],
)
def test_what_is_no_hugging_face_dataset(given: Any, says: str) -> None:
    assert says in error_of(lambda: Federation.from_huggingface(given()))


def test_a_hugging_face_dataset_is_no_client() -> None:
    assert "use Federation.from_huggingface" in error_of(lambda: Federation.from_clients({"a": columns()}))
