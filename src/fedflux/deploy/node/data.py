"""What a node holds, in the form that the core trains and describes: users' arrays, or one client of a federation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Federation
from fedflux.data.cache import ByteCache
from fedflux.data.dataset import Dataset, Examples
from fedflux.data.scaling import Requested, chosen
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.errors import FedfluxError
from fedflux.plugins import in_words

UNNUMBERED = -1
"""The number of a client that neither its data nor its configuration numbers: the server does."""
Ids = NDArray[np.generic] | Sequence[int] | Sequence[str]
Pair = tuple[NDArray[np.generic], NDArray[np.integer]]


@dataclass(frozen=True, eq=False)
class NodeData:
    """One client of a federation; an unlabelled node uses the images of its test part and nothing else."""

    federation: Federation
    client: int

    @staticmethod
    def of(
        train: Pair | None = None,
        validation: Pair | None = None,
        test: Pair | None = None,
        *,
        unlabelled: NDArray[np.generic] | None = None,
        classes: int,
        several: bool = False,
        client: int = UNNUMBERED,
        groups: Mapping[str, Ids] | None = None,
        scale: Requested = "auto",
    ) -> "NodeData":
        """From arrays: (inputs, labels) of each part, or the inputs of a node without labels.

        Inputs may have any shape, the same at every node; images are (N, channels, height, width). Labels are 0 to
        classes − 1, or (N, classes) of 0 and 1 where records have several labels; a node without any says so by
        `several`. `scale` is as everywhere: bytes are pixels, other numbers are standardised by the means and
        deviations of all nodes, whose sums are asked for once; `none` leaves them, token ids for instance, as they are.
        `groups` says, for each part that is given (train, validation, test, unlabelled), which records belong together:
        an integer or string each, such as the patient. They stay at the node.
        """
        if unlabelled is not None:
            group = _numbered(groups, {"unlabelled": len(unlabelled)})
            labels = np.zeros((len(unlabelled), classes) if several else len(unlabelled), dtype=np.int64)
            return _unlabelled(Examples(unlabelled, labels, group=group), classes, client, scale)
        if train is None:
            raise FedfluxError("a node needs a training part, or unlabelled images: NodeData.of(train=(x, y), …)")
        held = validation or _none_of(train)
        tested = test or _none_of(train)
        sizes = {"train": len(train[1]), "validation": len(held[1]), "test": len(tested[1])}
        group, known = _numbered(groups, sizes), sizes["train"] + sizes["validation"]
        learned = Examples(
            np.concatenate([train[0], held[0]]),
            np.concatenate([train[1], held[1]]).astype(np.int64),
            group=None if group is None else group[:known],
        )
        last = Examples(tested[0], tested[1].astype(np.int64), group=None if group is None else group[known:])
        dataset = Dataset("node", learned, last, classes, scaling=chosen(scale, learned.x))
        first = np.arange(len(train[1]))
        rows = ClientRows(first, np.arange(len(first), len(learned)), np.arange(len(tested[1])))
        return NodeData(_one_client(dataset, rows), client)

    def numbered(self, number: int) -> "NodeData":
        """The same data under the node's number, where the data do not bring one."""
        return replace(self, client=number) if self.client == UNNUMBERED else self

    def only(self, splits: Sequence[str]) -> "NodeData":
        """The same data with these parts alone: what a run may not use is as if the node did not hold it."""
        hidden = tuple(part for part in ("train", "validation", "test") if part not in splits)
        if not hidden:
            return self
        if self.federation.at(1) is not self.federation:
            raise FedfluxError(f"splits = '{', '.join(splits)}': parts of data that drift cannot be kept back")
        rows = _Without(self.federation.rows, hidden)
        return replace(self, federation=replace(self.federation, rows=rows, _cache=ByteCache(), _derived={}))


def _none_of(part: Pair) -> Pair:
    return part[0][:0], part[1][:0]


def _numbered(groups: Mapping[str, Ids] | None, sizes: Mapping[str, int]) -> NDArray[np.int64] | None:
    """The groups of all parts, one after another, numbered together: one id is one group in every part."""
    if groups is None:
        return None
    stray = sorted(set(groups) - {part for part, size in sizes.items() if size})
    if stray:
        raise FedfluxError(f"groups of '{stray[0]}', a part that the node does not hold")
    ids = []
    for part, size in sizes.items():
        told = np.asarray(groups.get(part, ()))
        if len(told) != size:
            raise FedfluxError(f"{size} examples in '{part}' but {len(told)} groups; give one for each")
        if size and (told.ndim != 1 or told.dtype.kind not in "iuU"):
            raise FedfluxError(f"groups of '{part}' are {told.dtype} of shape {told.shape}; give integers or strings")
        ids.append(told.astype(np.str_))
    return np.unique(np.concatenate(ids), return_inverse=True)[1].astype(np.int64)


def _unlabelled(examples: Examples, classes: int, client: int, scale: Requested) -> NodeData:
    """Labels are stood in for by zeros, which nothing reads: only the inputs of the test part are ever asked for."""
    none = np.arange(0)
    rows = ClientRows(none, none, np.arange(len(examples)))
    dataset = Dataset("node", examples, examples, classes, scaling=chosen(scale, examples.x))
    return NodeData(_one_client(dataset, rows), client)


def _one_client(dataset: Dataset, rows: ClientRows) -> Federation:
    return Federation(dataset, _Alone(rows), _Alone(Pattern()), seed=0)


class _Alone(Sequence[Any]):
    """The same for whatever number the one client has, since a node's number is not its place in a list."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._value

    def __iter__(self) -> Iterator[Any]:
        yield self._value


class _Without(Sequence[ClientRows]):
    """Clients' rows with some parts empty."""

    def __init__(self, rows: Sequence[ClientRows], hidden: tuple[str, ...]) -> None:
        self._rows = rows
        self._hidden = hidden

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return replace(self._rows[index], **{part: np.arange(0) for part in self._hidden})


def load_node_data(name: str, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> NodeData:
    """Call the user's `package.module:function`."""
    module_name, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedfluxError(f"data = '{name}' is not package.module:function: {in_words(error)}") from error
    held = function(node_config, run_config)
    if not isinstance(held, NodeData):
        raise FedfluxError(f"data = '{name}' gives {type(held).__name__}, not NodeData")
    return held
