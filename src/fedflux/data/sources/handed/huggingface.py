"""A dataset of Hugging Face's `datasets`, by its columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Requested
from fedflux.data.sources.handed.items import Array, as_array, as_ids, as_labels, names_of
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError, unknown

WHERE = "from_huggingface"
TRAINING, TEST = ("train", "validation"), "test"
NO_LABEL = -1
"""What the datasets of Hugging Face have in place of a class that is not told."""


def dataset_of_huggingface(
    dataset: Any,
    client: str | None,
    label: str,
    features: str | Sequence[str] | None,
    group: str | None,
    cluster: str | None,
    class_names: Sequence[str] | None,
    scale: Requested,
) -> Dataset:
    """The rows of a dataset, or of its splits: `validation` joins `train`, since every client cuts off its own."""
    training, test = _splits(dataset)
    columns = list(training[0].column_names)
    for part in (*training[1:], *test):
        if set(part.column_names) != set(columns):
            raise FedfluxError(f"{WHERE}: the splits have different columns; give them the same")
    told = {"label": label, "client": client, "group": group, "cluster": cluster}
    chosen = _features(columns, features, [name for name in told.values() if name is not None])
    for name in (*chosen, *(name for name in told.values() if name is not None)):
        if name not in columns:
            raise FedfluxError(f"{WHERE}: {unknown('column', name, columns)}")
    classes = getattr(training[0].features[label], "names", None)
    parts = [
        Part(
            _inputs(some, chosen),
            _labels(some, label),
            *(None if name is None else _ids(some, name) for name in (client, group, cluster)),
            ending=ending,
        )
        for some, ending in ((training, ""), (test, "_test"))
        if some
    ]
    made = make_dataset(
        "federation",
        WHERE,
        *parts,
        class_names=names_of(WHERE, "class_names", classes if class_names is None else class_names),
        scale=scale,
    )
    return replace(made, feature_names=tuple(chosen)) if len(chosen) > 1 else made


def _splits(dataset: Any) -> tuple[list[Any], list[Any]]:
    """The datasets of training and of the test."""
    named = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    for name, one in named.items():
        if not (hasattr(one, "column_names") and hasattr(one, "with_format") and hasattr(one, "__len__")):
            kind = type(one).__name__
            raise FedfluxError(
                f"{WHERE}: {kind} has no rows to read; give a datasets.Dataset, loaded without streaming"
            )
        if name not in (*TRAINING, TEST):
            raise FedfluxError(
                f"{WHERE}: a split '{name}'; name splits train, validation and test, or give one dataset"
            )
    training = [named[name] for name in TRAINING if name in named]
    if not training or sum(map(len, training)) == 0:
        raise FedfluxError(f"{WHERE}: the training split holds no row")
    return [one for one in training if len(one)], [named[TEST]] if TEST in named and len(named[TEST]) else []


def _features(columns: Sequence[str], features: str | Sequence[str] | None, told: Sequence[str]) -> list[str]:
    if isinstance(features, str):
        return [features]
    chosen = [name for name in columns if name not in told] if features is None else list(features)
    if not chosen:
        raise FedfluxError(f"{WHERE}: no column is left for inputs; name features=")
    return chosen


def _column(some: Sequence[Any], name: str) -> list[Any]:
    return [value for one in some for value in one.with_format("numpy")[name][:]]


def _inputs(some: Sequence[Any], names: Sequence[str]) -> Array:
    """One column as it is, or several of numbers side by side."""
    columns = [as_array(WHERE, f"column '{name}'", _column(some, name)) for name in names]
    for name, values in zip(names, columns, strict=True):
        if values.dtype.kind not in "biuf":
            words = "encode it as numbers, or name the features=" if values.dtype.kind in "US" else "give numbers"
            raise FedfluxError(f"{WHERE}: column '{name}' holds {values.dtype}; {words}")
        if len(names) > 1 and values.ndim > 1:
            words = f"{values.shape[1:]} numbers a row; with several columns each holds one: name one of features="
            raise FedfluxError(f"{WHERE}: column '{name}' holds {words}")
    if len(columns) > 1 or columns[0].ndim == 1:
        return np.stack(columns, axis=1)
    return columns[0]


def _labels(some: Sequence[Any], name: str) -> Array:
    labels = as_labels(WHERE, _column(some, name))
    if hasattr(some[0].features[name], "names") and labels.dtype.kind in "iu" and (labels == NO_LABEL).any():
        return np.where(labels == NO_LABEL, np.nan, labels)
    return labels


def _ids(some: Sequence[Any], name: str) -> Array:
    """Ids of clients or groups; numbers that stand for names become these."""
    ids = as_ids(WHERE, f"column '{name}'", _column(some, name), sum(map(len, some)))
    names = getattr(some[0].features[name], "names", None)
    return ids if names is None else np.array(names)[ids.astype(np.int64)]
