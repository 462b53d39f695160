"""A dataset of clients that are handed in by name, each with its own records in whatever holds them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Requested
from fedflux.data.sources.handed.items import Array, as_examples, as_ids, column_names, in_order, names_of
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError

WHERE = "from_clients"
ByName = Mapping[Any, Any]


@dataclass(frozen=True, eq=False)
class _Own:
    """One client's records of one part."""

    name: str
    x: Array
    y: Array | None
    group: Array | None
    ending: str

    @property
    def where(self) -> str:
        return f"{WHERE}: client '{self.name}'{', test part' if self.ending else ''}"


def dataset_of_clients(
    clients: ByName,
    test: ByName | None,
    groups: ByName | None,
    test_groups: ByName | None,
    clusters: ByName | None,
    class_names: Sequence[str] | None,
    scale: Requested,
) -> Dataset:
    """Everyone's records, client after client; whoever is in the test part alone stands behind the others."""
    given = {"clients": clients, "test": test, "groups": groups, "test_groups": test_groups, "clusters": clusters}
    by_name = {what: _by_name(what, one) for what, one in given.items()}
    names = list(dict.fromkeys([*by_name["clients"], *by_name["test"]]))
    for what in ("groups", "test_groups", "clusters"):
        of_part = {"groups": "clients", "test_groups": "test"}.get(what)
        stray = [name for name in by_name[what] if name not in (names if of_part is None else by_name[of_part])]
        if stray:
            raise FedfluxError(f"{WHERE}: {what} names '{stray[0]}', which is no client of {of_part or 'these'}")
    columns = _columns([*by_name["clients"].values(), *by_name["test"].values()])
    own = [_read(name, one, by_name["groups"], columns, "") for name, one in by_name["clients"].items()]
    tests = [_read(name, one, by_name["test_groups"], columns, "_test") for name, one in by_name["test"].items()]
    _check_alike([*own, *tests])
    grouped = any(one.group is not None for one in (*own, *tests))
    parts = [
        _part([one for one in records if (one.y is not None) is labelled], by_name["clusters"], grouped)
        for labelled in (True, False)
        for records in (own, tests)
    ]
    if parts[0] is None:
        raise FedfluxError(f"{WHERE}: nobody has labels to train with; a federation needs clients that do")
    dataset = make_dataset(
        "federation",
        WHERE,
        parts[0],
        parts[1],
        unlabelled=[one for one in parts[2:] if one is not None],
        class_names=names_of(WHERE, "class_names", class_names),
        client_names=names,
        scale=scale,
    )
    return replace(dataset, feature_names=columns)


def _columns(records: Iterable[Any]) -> tuple[str, ...] | None:
    """What the columns of the first table among these are called."""
    tables = (column_names(one[0]) for one in records if isinstance(one, tuple) and len(one) == 2)
    return next((names for names in tables if names is not None), None)


def _by_name(what: str, given: ByName | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise FedfluxError(f"{WHERE}: {what} is a {type(given).__name__}; give a mapping from clients' names")
    named: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if str(name) in named:
            raise FedfluxError(f"{WHERE}: client '{name}' is named twice in {what}; every client needs its own name")
        named[str(name)] = value
    if what == "clients" and not named:
        raise FedfluxError(f"{WHERE}: no client was given")
    return named


def _read(name: str, records: Any, groups: Mapping[str, Any], columns: tuple[str, ...] | None, ending: str) -> _Own:
    blank = _Own(name, np.zeros(0), None, None, ending)
    if isinstance(records, tuple) and len(records) == 2:
        records = (in_order(blank.where, records[0], columns), records[1])
    x, y = as_examples(blank.where, records)
    if x.dtype.kind not in "biuf":
        raise FedfluxError(f"{blank.where}: x holds {x.dtype}; give numbers")
    if x.ndim < 2:
        raise FedfluxError(f"{blank.where}: x has shape {x.shape}; give (N, features), or more axes")
    if len(x) == 0:
        raise FedfluxError(f"{blank.where}: holds no record; leave the client out")
    if y is not None and y.shape[:1] != x.shape[:1]:
        raise FedfluxError(f"{blank.where}: {len(x)} records in x but {len(y) if y.ndim else 1} labels in y")
    group = as_ids(blank.where, "groups", groups[name], len(x)) if name in groups else None
    return _Own(name, x, y, group, ending)


def _check_alike(records: Sequence[_Own]) -> None:
    """Refuse inputs that differ in shape or kind, and labels of two kinds, by the clients' names."""
    first = records[0]
    labelled = [one for one in records if one.y is not None]
    for one in records[1:]:
        if one.x.shape[1:] != first.x.shape[1:]:
            words = f"inputs of shape {one.x.shape[1:]}, but client '{first.name}' has {first.x.shape[1:]}"
            raise FedfluxError(f"{one.where}: {words}; all clients' are alike")
        if (one.x.dtype == np.uint8) != (first.x.dtype == np.uint8):
            words = f"inputs of {one.x.dtype}, but client '{first.name}' has {first.x.dtype}"
            raise FedfluxError(f"{one.where}: {words}; bytes are pixels: convert one of them")
    for one in labelled[1:]:
        mine, theirs = (np.asarray(other.y) for other in (one, labelled[0]))
        if (mine.dtype.kind in "US") != (theirs.dtype.kind in "US"):
            kinds = ["text" if array.dtype.kind in "US" else "numbers" for array in (mine, theirs)]
            words = f"labels are {kinds[0]}, but those of client '{labelled[0].name}' are {kinds[1]}"
            raise FedfluxError(f"{one.where}: {words}; give one kind")
        if mine.shape[1:] != theirs.shape[1:]:
            words = f"labels of shape {mine.shape[1:]}, but client '{labelled[0].name}' has {theirs.shape[1:]}"
            raise FedfluxError(f"{one.where}: {words} a record")


def _part(records: Sequence[_Own], clusters: Mapping[str, Any], grouped: bool) -> Part | None:
    """Several clients' records, one client after another; each record keeps its number within its client."""
    if not records:
        return None
    counts = [len(one.x) for one in records]
    silent = [one for one in records if clusters and one.name not in clusters]
    if silent and records[0].y is not None and not records[0].ending:
        raise FedfluxError(f"{WHERE}: clusters say nothing of client '{silent[0].name}'; name everyone's or none")
    labels = [one.y for one in records if one.y is not None]
    return Part(
        np.concatenate([one.x for one in records]),
        np.concatenate(labels) if labels else None,
        np.repeat([one.name for one in records], counts),
        np.concatenate([_group_names(one) for one in records]) if grouped else None,
        np.repeat([str(clusters[one.name]) for one in records], counts) if clusters and not silent else None,
        ending=records[0].ending,
        row=np.concatenate([np.arange(count) for count in counts]),
    )


def _group_names(one: _Own) -> Array:
    """Groups told apart by client; where a client names none, each of its records is alone."""
    ids = [f"alone{one.ending} {place}" for place in range(len(one.x))] if one.group is None else one.group.tolist()
    return np.array([f"{one.name} {group}" for group in ids])
