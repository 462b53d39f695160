"""Whatever holds examples in Python (arrays, tensors, lists, tables, torch datasets) as arrays of inputs and labels."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from fedflux.errors import FedfluxError
from fedflux.plugins import in_words

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.generic]
FORMS = "(x, y), (x, None) without labels, or a torch dataset of (x, y)"


def as_examples(where: str, thing: Any) -> tuple[Array, Array | None]:
    """Inputs and labels of one client, labels None where it has none."""
    if isinstance(thing, tuple) and len(thing) == 2:
        x, y = thing
        return as_array(where, "x", x), None if y is None else as_labels(where, y)
    if isinstance(thing, DataLoader):
        raise FedfluxError(f"{where}: a DataLoader gives batches; give its dataset")
    if hasattr(thing, "column_names"):
        raise FedfluxError(f"{where}: a Hugging Face dataset; use Federation.from_huggingface, or give (x, y)")
    if isinstance(thing, Dataset) or (isinstance(thing, list) and thing and isinstance(thing[0], tuple)):
        return _of_items(where, thing)
    raise FedfluxError(f"{where}: {type(thing).__name__} is no client; give {FORMS}")


def _of_items(where: str, items: Any) -> tuple[Array, Array | None]:
    """The items of a dataset, one by one: pairs of an input and a label, all alike."""
    xs: list[Array] = []
    ys: list[Any] = []
    for place, item in enumerate(_each(where, items)):
        if not isinstance(item, tuple | list) or len(item) != 2:
            count = f"{len(item)} things" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
            words = "models take one input" if isinstance(item, tuple | list) and len(item) > 2 else "give (x, y)"
            raise FedfluxError(f"{where}: item {place} is {count}, not an input and a label; {words}")
        x = as_array(where, f"item {place}", item[0])
        if xs and (x.shape, x.dtype.kind) != (xs[0].shape, xs[0].dtype.kind):
            forms = [f"{one.dtype} of shape {one.shape}" for one in (x, xs[0])]
            raise FedfluxError(f"{where}: item {place} is {forms[0]}, but item 0 is {forms[1]}; bring them to one form")
        xs.append(x)
        ys.append(item[1])
    if not xs:
        raise FedfluxError(f"{where}: holds no record")
    if all(y is None for y in ys):
        return np.stack(xs), None
    return np.stack(xs), as_labels(where, [_plain(y) for y in ys])


def _each(where: str, items: Any) -> Iterable[Any]:
    """The items in order; a map-style dataset need not know when to stop by itself."""
    try:
        if hasattr(items, "__len__") and hasattr(items, "__getitem__"):
            for place in range(len(items)):
                yield items[place]
        else:
            yield from items
    except FedfluxError:
        raise
    except Exception as error:  # a dataset of the user's may fail in any way
        raise FedfluxError(f"{where}: the dataset fails: {in_words(error)}") from error


def _plain(label: Any) -> Any:
    """One label as a number, a text or a list."""
    return label.tolist() if isinstance(label, torch.Tensor | np.ndarray | np.generic) else label


def as_array(where: str, name: str, thing: Any) -> Array:
    """Numbers as an array, from whatever holds them."""
    if isinstance(thing, torch.Tensor):
        dense = thing.detach().cpu()
        return np.asarray((dense.float() if dense.dtype == torch.bfloat16 else dense).numpy())
    import pandas as pd  # a node's app loads this module, and has no table

    if isinstance(thing, pd.DataFrame):
        _check_columns(where, thing)
    if isinstance(thing, np.ma.MaskedArray) and np.ma.is_masked(thing):
        raise FedfluxError(f"{where}: {name} has masked values; fill them or leave their records out")
    try:
        if isinstance(thing, list) and thing and isinstance(thing[0], torch.Tensor):
            thing = [as_array(where, name, one) for one in thing]
        found = np.asarray(thing)
    except Exception as error:  # whatever calls itself an array may fail in any way
        unequal = isinstance(error, ValueError) and "inhomogeneous" in str(error)
        words = "lists of unequal length: pad or cut them to one" if unequal else f"no array: {in_words(error)}"
        raise FedfluxError(f"{where}: {name} holds {words}") from error
    if found.dtype == object and not isinstance(thing, pd.Series):
        found = _of_objects(where, name, found)
    return found


def _of_objects(where: str, name: str, found: Array) -> Array:
    """Numbers that came as Python objects, or arrays in an array."""
    values = found.reshape(-1).tolist()
    if not values or not all(isinstance(one, int | float | np.ndarray | list) for one in values):
        odd = next((one for one in values if not isinstance(one, int | float | np.ndarray | list)), None)
        raise FedfluxError(f"{where}: {name} holds {type(odd).__name__} ({str(odd)[:30]!r}); give numbers")
    try:
        return np.stack([np.asarray(one) for one in values]).reshape(*found.shape, *np.shape(values[0]))
    except ValueError as error:
        raise FedfluxError(f"{where}: {name} holds lists of unequal length: pad or cut them to one") from error


def _check_columns(where: str, table: "pd.DataFrame") -> None:
    """Refuse columns of a table that are no numbers, by name."""
    import pandas as pd

    for name, kind in table.dtypes.items():
        if not (pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)):
            raise FedfluxError(f"{where}: column '{name}' holds {kind}; encode it as numbers or leave it out")


def column_names(thing: Any) -> tuple[str, ...] | None:
    """What the columns of a table are called; None where they are numbered, and of anything else."""
    import pandas as pd

    if not isinstance(thing, pd.DataFrame) or pd.api.types.is_integer_dtype(thing.columns):
        return None
    return tuple(map(str, thing.columns))


def in_order(where: str, thing: Any, names: Sequence[str] | None) -> Any:
    """A table with its columns in the order of these names; what is no table is as it is."""
    own = column_names(thing)
    if own is None or names is None or own == tuple(names):
        return thing
    for name in names:
        if name not in own:
            raise FedfluxError(f"{where}: column '{name}' is missing; all tables have the same columns")
    for name in own:
        if name not in names or own.count(name) > 1:
            what = "is there twice" if name in names else "is in no other table"
            raise FedfluxError(f"{where}: column '{name}' {what}; all tables have the same columns")
    return thing.iloc[:, [own.index(name) for name in names]]


def as_labels(where: str, thing: Any) -> Array:
    """Labels as numbers or text; what is missing among them is NaN or nothing."""
    if isinstance(thing, torch.Tensor):
        return as_array(where, "y", thing)
    if isinstance(thing, list | tuple) and len({isinstance(one, str) for one in thing if one is not None}) > 1:
        raise FedfluxError(f"{where}: labels in y are text and numbers mixed; give one kind")
    try:
        found = np.asarray(thing)
    except ValueError as error:
        raise FedfluxError(f"{where}: y holds lists of unequal length; give one label a record") from error
    if found.dtype != object:
        return found
    import pandas as pd

    gone = np.asarray(pd.isna(found))
    texts = [isinstance(one, str) for one in found[~gone].tolist()]
    if any(texts) and not all(texts):
        raise FedfluxError(f"{where}: labels in y are text and numbers mixed; give one kind")
    if any(texts):
        return np.where(gone, "", found).astype(np.str_)
    try:
        return np.where(gone, np.nan, found).astype(np.float64)
    except (TypeError, ValueError) as error:
        odd = next(iter(found[~gone].tolist()), None)
        raise FedfluxError(f"{where}: labels in y are {type(odd).__name__}; give integers or text") from error


def as_ids(where: str, name: str, thing: Any, count: int) -> Array:
    """One id a record: a number or a text."""
    found = np.asarray(thing.tolist() if isinstance(thing, torch.Tensor) else thing)
    if found.dtype == object:
        found = found.astype(np.str_)
    if found.dtype.kind not in "iuUS":
        raise FedfluxError(f"{where}: {name} holds {found.dtype}; give an integer or a text each")
    if found.shape != (count,):
        raise FedfluxError(f"{where}: {name} has shape {found.shape}, but there are {count} records; give one each")
    return found


def names_of(where: str, what: str, names: Sequence[Any] | None) -> list[str] | None:
    """Names in their order, as texts."""
    if names is None:
        return None
    if isinstance(names, str):
        raise FedfluxError(f"{where}: {what} is one text; give a list of names")
    return [str(one) for one in names]
