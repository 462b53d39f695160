"""People's own data, however it came: arrays with labels, owners and groups become one checked dataset.

Every loader of own data reads its form into `Part`s and ends here, so that an array, a file and a table are understood
alike. Nothing is guessed of inputs but this: bytes are pixels, and pixels are images.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import UNLABELLED, Dataset, Examples
from fedflux.data.scaling import Requested, chosen
from fedflux.data.sources.part import Array, Part, check_apart, set_apart
from fedflux.data.splits import hold_out
from fedflux.data.tasks.several import has_several, several_labels
from fedflux.data.truth import UNKNOWN
from fedflux.errors import FedfluxError

Index = NDArray[np.int64]


def make_dataset(
    name: str,
    where: str,
    train: Part,
    test: Part | None = None,
    *,
    unlabelled: Sequence[Part] = (),
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    scale: Requested = "auto",
) -> Dataset:
    """The dataset of these parts; where nobody who trains has a test part, 20 % of every client's records become one.

    Records without labels, which come as parts of their own or among the others, join the test part: their clients
    are answered and not scored. `client_names` are the names in their order; clients in the test part alone may be
    among them or not. `where` is what messages begin with: the file, or what the user called.
    """
    if scale not in get_args(Requested):
        raise FedfluxError(f"{where}: scale '{scale}'; give {', '.join(get_args(Requested))}")
    for part in (train, test, *unlabelled):
        if part is not None:
            _check_lengths(where, part)
    if len(train.x) == 0:
        raise FedfluxError(f"{where}: {train.named('x')} holds no example")
    train, *rest = (one for one in set_apart(where, train) if one is not None)
    if test is not None:
        test, *others = (one for one in set_apart(where, test) if one is not None)
        rest += others
    rest += unlabelled
    check_apart(where, test, rest)
    if len(train.x) == 0 or train.y is None:
        raise FedfluxError(f"{where}: nobody has labels to train with; a federation needs clients that do")
    parts = [train, *([] if test is None else [test]), *rest]
    inputs = _alike(where, parts, [_inputs(where, part, scale) for part in parts])
    labels, names = _numbered_labels(where, parts, class_names)
    owners, clients = _numbered_clients(where, parts, client_names)
    for part, x in zip(parts, inputs, strict=True):
        _check_finite(where, part, x)
    groups = _numbered_groups(where, parts)
    clusters = None if train.cluster is None or owners[0] is None else _clusters(where, parts, owners, clients)
    made = [Examples(*arrays) for arrays in zip(inputs, labels, owners, groups, strict=True)]
    if test is None or _strangers(owners[0], owners[1]):
        made[:1] = hold_out(made[0])
    known = None if owners[0] is None else tuple(clients)
    return Dataset(
        *(name, made[0], _joined(made[1:]), len(names), known, clusters),
        scaling=chosen(scale, inputs[0]),
        class_names=tuple(map(str, names)),
    )


def _strangers(training: Index | None, tested: Index | None) -> bool:
    """Whether nobody who trains is in the test part."""
    return training is not None and tested is not None and not np.isin(tested, training).any()


def _alike(where: str, parts: Sequence[Part], inputs: list[Array]) -> list[Array]:
    """Inputs of one type: bytes are not mixed with other numbers, since they mean pixels."""
    if len({one.dtype == np.uint8 for one in inputs}) > 1:
        kinds = " but ".join(f"{part.named('x')[1:-1]} is {x.dtype}" for part, x in zip(parts, inputs, strict=True))
        raise FedfluxError(f"{where}: {kinds}; store both alike")
    for part, x in zip(parts, inputs, strict=True):
        if x.shape[1:] != inputs[0].shape[1:]:
            words = f"inputs of shape {x.shape[1:]} in {part.named('x')}, but training has {inputs[0].shape[1:]}"
            raise FedfluxError(f"{where}: {words}")
    wanted = np.result_type(*inputs)
    return [one.astype(wanted, copy=False) for one in inputs]


def _joined(parts: Sequence[Examples]) -> Examples:
    """Several parts as one."""
    if len(parts) == 1:
        return parts[0]
    x, y, client, group = ([getattr(one, key) for one in parts] for key in ("x", "y", "client", "group"))
    owner, groups = (None if one[0] is None else np.concatenate(one) for one in (client, group))
    return Examples(np.concatenate(x), np.concatenate(y), owner, groups)


def _check_lengths(where: str, part: Part) -> None:
    if part.x.ndim < 2:
        hint = "; lists of unequal length make none" if part.x.dtype == object else ""
        raise FedfluxError(
            f"{where}: {part.named('x')} has shape {part.x.shape}; give (N, features), or more axes{hint}"
        )
    for key in ("y", "client", "group", "cluster"):
        values = getattr(part, key)
        if values is not None and np.shape(values)[:1] != part.x.shape[:1]:
            count = len(values) if np.ndim(values) else 1
            raise FedfluxError(f"{where}: {len(part.x)} examples in {part.named('x')} but {count} in {part.named(key)}")


def _inputs(where: str, part: Part, scale: Requested) -> Array:
    """Numbers, contiguous: pixels as (N, channels, height, width), everything else in the shape that it came in."""
    x, name = part.x, part.named("x")
    if x.dtype.kind not in "biuf":
        raise FedfluxError(f"{where}: {name} holds {x.dtype}; give numbers")
    if 0 in x.shape[1:]:
        raise FedfluxError(f"{where}: {name} has shape {x.shape}: inputs without a number")
    if scale == "pixels" and x.dtype.kind in "iu" and x.dtype != np.uint8:
        if x.size and (x.min() < 0 or x.max() > 255):
            raise FedfluxError(f"{where}: integers in {name} run from {x.min()} to {x.max()}; pixels are 0 to 255")
        x = x.astype(np.uint8)
    if x.dtype.kind == "b" or x.dtype == np.float16:
        x = x.astype(np.float32)
    elif x.dtype.kind in "iu" and x.dtype != np.uint8:
        x = x.astype(np.int64)
    if (x.dtype == np.uint8 and scale in ("auto", "pixels")) or scale == "pixels":
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _check_finite(where: str, part: Part, x: Array) -> None:
    if x.dtype.kind != "f":
        return
    bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if bad.any():
        place = part.at(int(np.flatnonzero(bad)[0]))
        raise FedfluxError(f"{where}: {place} of {part.named('x')} holds NaN or infinite values; clean the data")


def _numbered_labels(
    where: str, parts: Sequence[Part], given: Sequence[str] | None
) -> tuple[list[Index], Sequence[str]]:
    """Labels as numbers of classes, and what the classes are called: gaps between integers make no classes.

    Of shape (N, L), 0 and 1, they say which of several labels a record has.
    """
    if has_several(parts):
        return several_labels(where, parts, given, UNLABELLED)
    found = [_labels(where, part) for part in parts]
    told = [one for one in found if one is not None]
    if not told:
        raise FedfluxError(f"{where}: nobody has labels; a federation needs clients that do")
    if len({one.dtype.kind == "U" for one in told}) > 1:
        raise FedfluxError(f"{where}: labels are text in one part and numbers in another; give one kind")
    values = np.unique(np.concatenate(told))
    if given is None:
        known, names = values, [str(value) for value in values.tolist()]
    else:
        names = [str(name) for name in given]
        if len(set(names)) < len(names):
            raise FedfluxError(f"{where}: a name stands twice in class_names")
        known = np.array(names) if values.dtype.kind == "U" else np.arange(len(names))
        stray = np.setdiff1d(values, known)
        if len(stray):
            raise FedfluxError(f"{where}: label {stray[0]} has no name among the {len(names)} class_names")
    order = np.argsort(known, kind="stable")
    numbers = [
        np.full(len(part.x), UNLABELLED) if one is None else order[np.searchsorted(known, one, sorter=order)]
        for part, one in zip(parts, found, strict=True)
    ]
    return [one.astype(np.int64) for one in numbers], names


def _labels(where: str, part: Part) -> Array | None:
    """One label a record: integers, whole numbers, or text."""
    if part.y is None:
        return None
    y, name = part.y, part.named("y")
    if y.ndim != 1:
        raise FedfluxError(f"{where}: {name} has shape {y.shape}; give (N,), or (N, L) of 0 and 1")
    if y.dtype.kind == "f":
        values = y.astype(np.float64)
        odd = np.flatnonzero(~np.isfinite(values) | (values != np.round(values)))
        if len(odd):
            raise FedfluxError(f"{where}: label {y[odd[0]]} of {part.at(int(odd[0]))} in {name}; give integers or text")
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        y = _text(where, name, y)
    if y.dtype.kind not in "biuU":
        raise FedfluxError(f"{where}: labels in {name} are {y.dtype}; give integers or text")
    return y if y.dtype.kind == "U" else y.astype(np.int64)


def _numbered_clients(
    where: str, parts: Sequence[Part], given: Sequence[str] | None
) -> tuple[list[Index | None], list[str]]:
    """Owners as numbers of clients and the clients' names: in the order given, else sorted, those in the test part
    alone behind the others.
    """
    if parts[0].client is None:
        if any(part.client is not None for part in parts):
            raise FedfluxError(f"{where}: 'client' is missing, which {parts[1].named('client')} needs")
        return [None] * len(parts), []
    ids: list[Array] = []
    for part in parts:
        if part.client is None:
            raise FedfluxError(f"{where}: {part.named('client')} is missing, which 'client' needs")
        ids.append(_ids(where, part, "client"))
    sorted_names = [[str(value) for value in np.unique(one).tolist()] for one in ids]
    names = [str(name) for name in given] if given is not None else list(sorted_names[0])
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FedfluxError(f"{where}: client '{twice}' is named twice; every client needs a name of its own")
    if given is not None and not set(sorted_names[0]) <= set(names):
        stray = next(name for name in sorted_names[0] if name not in set(names))
        raise FedfluxError(f"{where}: client '{stray}' is not among client_names")
    have = set(names)
    later = dict.fromkeys(name for one in sorted_names[1:] for name in one if name not in have)
    names += later
    number = {name: index for index, name in enumerate(names)}
    return [np.array([number[str(value)] for value in one.tolist()], np.int64) for one in ids], names


def _numbered_groups(where: str, parts: Sequence[Part]) -> list[Index | None]:
    """Groups of all parts, numbered together: one id is one group in every part."""
    if parts[0].group is None and not any(part.group is not None for part in parts):
        return [None] * len(parts)
    for part in parts:
        if part.group is None and len(part.x):
            raise FedfluxError(
                f"{where}: {part.named('group')} is missing, though other records have groups; give both"
            )
    ids = [_ids(where, part, "group") for part in parts if part.group is not None]
    if len({one.dtype.kind == "U" for one in ids}) > 1:
        ids = [one.astype(np.str_) for one in ids]
    numbers = np.unique(np.concatenate(ids), return_inverse=True)[1].astype(np.int64)
    cuts = np.cumsum([len(one) for one in ids])[:-1]
    found = iter(np.split(numbers, cuts))
    return [None if part.group is None else next(found) for part in parts]


def _clusters(where: str, parts: Sequence[Part], owners: Sequence[Index | None], names: Sequence[str]) -> Index:
    """Each client's cluster, numbered in sorted order; unknown where nobody tells it."""
    told = [(part, owner) for part, owner in zip(parts, owners, strict=True) if part.cluster is not None]
    ids, cluster = np.unique(np.concatenate([_ids(where, part, "cluster") for part, _ in told]), return_inverse=True)
    everyone = np.concatenate([owner for _, owner in told if owner is not None])
    of_client = np.full(len(names), UNKNOWN, np.int64)
    for index, name in enumerate(names):
        held = np.unique(cluster[everyone == index])
        if len(held) > 1:
            examples = " and ".join(str(ids[number]) for number in held[:2])
            raise FedfluxError(f"{where}: client '{name}' lies in clusters {examples}; a client has one cluster")
        if len(held):
            of_client[index] = held[0]
    return of_client


def _ids(where: str, part: Part, key: str) -> Array:
    values: Array = getattr(part, key)
    if values.dtype.kind not in "iuUS" or values.ndim != 1:
        form = f"{values.dtype} of shape {values.shape}"
        raise FedfluxError(f"{where}: {part.named(key)} is {form}; give one integer or string per example")
    return _text(where, part.named(key), values) if values.dtype.kind == "S" else values


def _text(where: str, name: str, values: Array) -> Array:
    try:
        return values.astype(np.str_)
    except UnicodeDecodeError as error:
        raise FedfluxError(f"{where}: {name} holds bytes beyond ASCII; store it as strings") from error


def with_scale(dataset: Dataset, scale: Requested) -> Dataset:
    """The same data under another scaling; where the data's own is of the kind that is asked for, it stays."""
    if scale in ("auto", dataset.scaling.kind):
        return dataset
    if scale != "pixels":
        return replace(dataset, scaling=chosen(scale, dataset.train.x))
    parts = [Part(one.x, None, ending=end) for one, end in ((dataset.train, ""), (dataset.test, "_test"))]
    train, test = (_inputs(dataset.name, part, scale) for part in parts)
    return replace(
        dataset,
        train=replace(dataset.train, x=train),
        test=replace(dataset.test, x=test),
        scaling=chosen(scale, train),
    )


def as_inputs(where: str, x: Array, scale: Requested) -> Array:
    """Somebody's inputs as a dataset of that scaling would hold them."""
    part = Part(x, None)
    _check_lengths(where, part)
    return _inputs(where, part, scale)
