"""Federations of Hugging Face datasets, by their columns."""

from typing import Any

import numpy as np
import pytest

from fedflux import Federation
from fedflux.data.scaling import PIXELS

datasets = pytest.importorskip("datasets")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


def table(**more: object) -> Any:
    columns = {"age": X[:, 0].tolist(), "weight": X[:, 1].tolist(), "hospital": ["a", "b"] * 10}
    return datasets.Dataset.from_dict({**columns, "label": Y[::-1].tolist(), **more})


def test_columns_of_a_hugging_face_dataset() -> None:
    federation = Federation.from_huggingface(table(), client="hospital")
    assert (federation.names, federation.input_shape) == (("a", "b"), (2,))
    chosen = Federation.from_huggingface(table(), client="hospital", features=["weight"])
    assert chosen.input_shape == (1,)


def test_splits_of_a_hugging_face_dataset() -> None:
    parts = datasets.DatasetDict(train=table(), validation=table(), test=table())
    federation = Federation.from_huggingface(parts, client="hospital")
    assert (len(federation.dataset.train), len(federation.dataset.test)) == (40, 20)


def test_class_names_of_a_hugging_face_dataset() -> None:
    named = table().cast_column("label", datasets.ClassLabel(names=["sound", "sick", "unseen"]))
    federation = Federation.from_huggingface(named, client="hospital")
    assert federation.class_names == ("sound", "sick", "unseen")
    assert set(federation.dataset.train.y.tolist()) == {0, 1}


def test_images_of_a_hugging_face_dataset() -> None:
    pictures = [RNG.integers(0, 255, (6, 5, 3), dtype=np.uint8) for _ in range(20)]
    form = datasets.Features(
        {"image": datasets.Image(), "client": datasets.Value("string"), "label": datasets.Value("string")}
    )
    rows = {"image": pictures, "client": ["a", "b"] * 10, "label": [["x", "y"][y] for y in Y[::-1]]}
    federation = Federation.from_huggingface(datasets.Dataset.from_dict(rows, features=form))
    assert (federation.input_shape, federation.dataset.scaling) == ((3, 6, 5), PIXELS)
    first = {x.transpose(1, 2, 0).tobytes() for x in federation.inputs(0, "train")}
    assert first <= {one.tobytes() for one in pictures}
