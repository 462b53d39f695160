"""Clients that a trained run has never seen, as a federation that its method can be asked about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort, Federation
from fedflux.data.dataset import UNLABELLED, Dataset, Examples
from fedflux.data.scaling import Scaling
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.data.sources.handed.items import as_array, column_names
from fedflux.data.sources.own import as_inputs
from fedflux.data.truth import UNKNOWN
from fedflux.errors import FedfluxError
from fedflux.runs.storage.trained import Form

NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Newcomer:
    """One client's records: inputs, and where they are known labels and the group of each."""

    name: str
    x: NDArray[np.generic]
    y: NDArray[np.generic] | None = None
    group: NDArray[np.generic] | None = None
    columns: tuple[str, ...] | None = None
    """What a table calls its columns."""


def newcomer(name: str, x: Any, y: Any = None, group: Any = None) -> Newcomer:
    """From whatever holds records: arrays, tensors, lists, tables."""
    inputs = as_array(f"client '{name}'", "x", x)
    if inputs.ndim == 0:
        raise FedfluxError(f"client '{name}': {type(x).__name__} holds no records; give a row a record")
    for what, values in (("labels", y), ("groups", group)):
        if values is not None and len(values) != len(inputs):
            raise FedfluxError(f"client '{name}': {len(inputs)} records but {len(values)} {what}")
    labels, groups = (None if one is None else np.asarray(one) for one in (y, group))
    return Newcomer(name, inputs, labels, groups, column_names(x))


def meet(newcomers: Sequence[Newcomer], form: Form, uses_truth: bool = False) -> Cohort:
    """The newcomers as clients behind those that trained: all records at test time, labelled ones to train on, too.

    Nobody knows a newcomer's true cluster: a method that `uses_truth` places it by what it holds.
    """
    if not newcomers:
        raise FedfluxError("no client was given")
    x = [_inputs(one, form) for one in newcomers]
    if len({one.dtype == np.uint8 for one in x}) > 1:  # bytes of one client beside another's pixels of 0 to 1
        x = [one.astype(np.float32) / np.float32(255) if one.dtype == np.uint8 else one for one in x]
    y = [numbered_labels(one, form) for one in newcomers]
    ends = np.cumsum([len(one) for one in x])
    rows = [np.arange(end - len(one), end) for one, end in zip(x, ends, strict=True)]
    inputs, groups = np.concatenate(x), _groups(newcomers)
    targets = (form.classes,) if form.several_labels else ()
    known = np.concatenate(
        [np.zeros((len(one), *targets), np.int64) if told is None else told for one, told in zip(x, y, strict=True)]
    )
    dataset = Dataset(
        "new clients",
        Examples(inputs, known, group=groups),
        Examples(inputs, np.full((len(inputs), *targets), UNLABELLED), group=groups),
        form.classes,
        scaling=Scaling.from_plain(form.scaling),
        class_names=form.class_names,
    )
    new = [ClientRows(NOBODY if told is None else own, NOBODY, own) for own, told in zip(rows, y, strict=True)]
    trained = len(form.client_names)
    federation = Federation(
        dataset=dataset,
        rows=[ClientRows(NOBODY, NOBODY, NOBODY)] * trained + new,
        patterns=[Pattern()] * (trained + len(new)),
        seed=0,
        names=(*form.client_names, *(one.name for one in newcomers)),
        _truth=np.concatenate([np.arange(trained), np.full(len(new), UNKNOWN)]),
    )
    return (federation if uses_truth else federation.blind()).cohort(range(trained, trained + len(new)))


def known_clients(clients: Sequence[int], form: Form) -> Cohort:
    """Clients that trained, who brought no records along."""
    blank = np.zeros((1, *form.model_shape), dtype={"u": np.uint8, "i": np.int64}.get(form.kind, np.float32))
    return meet([Newcomer("", blank)], form).federation.cohort(clients)


def _inputs(one: Newcomer, form: Form) -> NDArray[np.generic]:
    """Numbers of the kind that the run was trained on, in the shape that models are given."""
    scaling = Scaling.from_plain(form.scaling)
    where = f"client '{one.name}'"
    if len(one.x) == 0:
        raise FedfluxError(f"{where} holds no record")
    x = as_inputs(where, _ordered(where, one, form.feature_names), scaling.kind)
    if x.shape[1:] == form.input_shape and form.model_shape != form.input_shape:
        x = np.repeat(x, form.model_shape[0], axis=1)  # grey images, of a run that knows colours
    if x.shape[1:] != form.model_shape:
        raise FedfluxError(f"{where}: inputs of shape {x.shape[1:]}, but the run was trained on {form.input_shape}")
    if form.integers and x.dtype.kind not in "ui":
        raise FedfluxError(f"{where}: inputs of type {x.dtype}, but the run was trained on integers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise FedfluxError(f"{where}: record {row} holds NaN or infinite values; clean the data first")
    if x.dtype == np.uint8 or form.integers:
        return x.astype(np.int64) if form.integers and form.kind != "u" else x
    return x.astype(np.float64 if scaling.kind == "standardise" else np.float32)


def _ordered(where: str, one: Newcomer, names: Sequence[str] | None) -> NDArray[np.generic]:
    """A table's columns in the order in which the run was trained on them."""
    if one.columns is None or names is None or one.columns == tuple(names):
        return one.x
    for name in names:
        if name not in one.columns:
            raise FedfluxError(f"{where}: column '{name}', which the run was trained on, is missing")
    for name in one.columns:
        if name not in names:
            raise FedfluxError(f"{where}: the run was not trained on column '{name}'; leave it out")
    return one.x[:, [one.columns.index(name) for name in names]]


def numbered_labels(one: Newcomer, form: Form) -> NDArray[np.int64] | None:
    """Labels as numbers of classes: by the class's name, or by its number where no class is called so; 0 or 1 for each
    of several labels.
    """
    if one.y is None:
        return None
    if form.several_labels:
        if one.y.shape != (len(one.x), form.classes) or not np.isin(one.y, (0, 1)).all():
            raise FedfluxError(f"client '{one.name}': labels must be 0 or 1, of shape (N, {form.classes})")
        return one.y.astype(np.int64)
    if one.y.ndim != 1:
        raise FedfluxError(f"client '{one.name}': labels of shape {one.y.shape}; give one a record")
    numbers = {name: number for number, name in enumerate(form.class_names)}
    values, places = np.unique(one.y, return_inverse=True)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.round(values)).all():
        values = values.astype(np.int64)
    found = [numbers.get(str(value)) for value in values.tolist()]
    if None in found and values.dtype.kind in "iu" and values.min() >= 0 and values.max() < form.classes:
        found = values.tolist()
    for value, number in zip(values.tolist(), found, strict=True):
        if number is None:
            known = ", ".join(form.class_names[:10]) + (", …" if form.classes > 10 else "")
            raise FedfluxError(f"client '{one.name}': label {value} is none of the run's classes: {known}")
    numbered: NDArray[np.int64] = np.array(found, dtype=np.int64)[places.reshape(-1)]
    return numbered


def _groups(newcomers: Sequence[Newcomer]) -> NDArray[np.int64] | None:
    """Groups of all clients, numbered together; a client without groups has one a record."""
    if all(one.group is None for one in newcomers):
        return None
    told: list[NDArray[np.int64]] = []
    begin = 0
    for one in newcomers:
        own = np.arange(len(one.x)) if one.group is None else np.unique(one.group, return_inverse=True)[1].reshape(-1)
        told.append(own.astype(np.int64) + begin)
        begin += len(one.x)
    return np.concatenate(told)
