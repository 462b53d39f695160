"""A dataset of arrays in which a column says whose each record is: the arrays of an .npz file, in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Requested
from fedflux.data.sources.handed.items import Array, as_array, as_ids, as_labels, column_names, in_order, names_of
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError

WHERE = "from_arrays"


def dataset_of_arrays(
    given: Mapping[str, Any], class_names: Sequence[str] | None, client_names: Sequence[str] | None, scale: Requested
) -> Dataset:
    """The dataset of `x`, `y`, `client`, `group`, `cluster`, and the same with `_test`; None where there is none."""
    if given.get("x_test") is None:
        for key in ("y_test", "client_test", "group_test"):
            if given.get(key) is not None:
                raise FedfluxError(f"{WHERE}: {key} without x_test; give both or none")
    columns = column_names(given["x"])
    if columns is not None:
        given = {**given, "x_test": in_order(f"{WHERE}: x_test", given.get("x_test"), columns)}
    parts = [_part(given, ending) for ending in ("", "_test") if given.get(f"x{ending}") is not None]
    dataset = make_dataset(
        "federation",
        WHERE,
        *parts,
        class_names=names_of(WHERE, "class_names", class_names),
        client_names=names_of(WHERE, "client_names", client_names),
        scale=scale,
    )
    return replace(dataset, feature_names=columns)


def _part(given: Mapping[str, Any], ending: str) -> Part:
    x, y = as_array(WHERE, f"x{ending}", given[f"x{ending}"]), given.get(f"y{ending}")
    if not ending and y is None:
        raise FedfluxError(f"{WHERE}: y is None; give labels, NaN or '' for records of clients without any")
    count = len(x) if x.ndim else 0
    ids = [_ids(f"{key}{ending}", given.get(f"{key}{ending}"), count) for key in ("client", "group", "cluster")]
    return Part(x, None if y is None else as_labels(WHERE, y), *ids, ending=ending)


def _ids(name: str, thing: Any, count: int) -> Array | None:
    return None if thing is None else as_ids(WHERE, name, thing, count)
