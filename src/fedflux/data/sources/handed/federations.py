"""How federations are made of people's own data, wherever that is: what `Federation` inherits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedflux.data.scaling import Requested

if TYPE_CHECKING:
    from fedflux.data.dataset import Dataset
    from fedflux.data.federation import Federation


class FromOwnData:
    """Federations of people's own data.

    Where nobody who trains has a test part, 20 % of every class of every client become one: whole groups where records
    have some.
    Clients without labels are answered and not scored; clients of a test part alone are held out of training.
    `scale` says what is done to inputs: `auto` takes bytes for pixels and standardises all else (`pixels`,
    `standardise`, `none`).
    """

    @staticmethod
    def from_clients(
        clients: Mapping[Any, Any],
        *,
        test: Mapping[Any, Any] | None = None,
        groups: Mapping[Any, Any] | None = None,
        test_groups: Mapping[Any, Any] | None = None,
        clusters: Mapping[Any, Any] | None = None,
        class_names: Sequence[str] | None = None,
        scale: Requested = "auto",
    ) -> "Federation":
        """From clients by name: each (x, y), (x, None) without labels, or a torch dataset of (x, y).

        `test` has the clients' test parts in the same forms. `groups` and `test_groups` have an id for each of a
        client's records, `clusters` each client's true cluster, where somebody knows it.

        >>> x, y = np.zeros((10, 3)), ["a", "b"] * 5
        >>> fed = Federation.from_clients({"north": (x, y), "south": (x, y), "new": (x, None)})
        >>> fed.names, fed.class_names
        (('north', 'south'), ('a', 'b'))
        """
        from fedflux.data.sources.handed.clients import dataset_of_clients

        return _federation(dataset_of_clients(clients, test, groups, test_groups, clusters, class_names, scale))

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        client: Any = None,
        *,
        group: Any = None,
        cluster: Any = None,
        x_test: Any = None,
        y_test: Any = None,
        client_test: Any = None,
        group_test: Any = None,
        class_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        scale: Requested = "auto",
    ) -> "Federation":
        """From arrays with an entry a record; `client` says whose it is. Without it, ten clients are dealt.

        A label of NaN, or '' among texts, is none; a client has labels for all of its records or for none.

        >>> x, y, client = np.zeros((60, 3)), [0, 1] * 30, ["north"] * 20 + ["south"] * 40
        >>> fed = Federation.from_arrays(x, y, client)
        >>> fed.names, fed.size(0, "train") + fed.size(0, "validation") + fed.size(0, "test")
        (('north', 'south'), 20)
        """
        from fedflux.data.sources.handed.arrays import dataset_of_arrays

        given = {"x": x, "y": y, "client": client, "group": group, "cluster": cluster}
        given |= {"x_test": x_test, "y_test": y_test, "client_test": client_test, "group_test": group_test}
        return _federation(dataset_of_arrays(given, class_names, client_names, scale))

    @staticmethod
    def from_huggingface(
        dataset: Any,
        client: str | None = "client",
        label: str = "label",
        features: str | Sequence[str] | None = None,
        *,
        group: str | None = None,
        cluster: str | None = None,
        class_names: Sequence[str] | None = None,
        scale: Requested = "auto",
    ) -> "Federation":
        """From a `datasets.Dataset`, or a `DatasetDict` with `train` (and `validation`) and `test`, by columns.

        `features` is the column of inputs, or several of numbers; by default all that have no other part.

        >>> from datasets import Dataset
        >>> columns = {"age": [61, 47, 52, 38], "label": ["ill", "well"] * 2, "hospital": ["north"] * 2 + ["south"] * 2}
        >>> Federation.from_huggingface(Dataset.from_dict(columns), client="hospital").names
        ('north', 'south')
        """
        from fedflux.data.sources.handed.huggingface import dataset_of_huggingface

        return _federation(dataset_of_huggingface(dataset, client, label, features, group, cluster, class_names, scale))

    @staticmethod
    def from_csv(
        path: str | Path,
        *,
        label: str | None = None,
        client: str | None = None,
        group: str | None = None,
        cluster: str | None = None,
        part: str | None = None,
        features: Sequence[str] | None = None,
        test: str | Path | None = None,
        class_names: Sequence[str] | None = None,
        scale: Requested = "auto",
    ) -> "Federation":
        """From a table with a line a record; arguments name its columns, by default those of the arguments' names.

        `part` says of each line whether it is `train` or `test`; `test` is a second table instead. All other columns
        are inputs, or those of `features` alone.

        >>> columns = {"age": range(40), "weight": range(40), "client": ["a", "b"] * 20, "label": [0, 0, 1, 1] * 10}
        >>> pandas.DataFrame(columns).to_csv("table.csv", index=False)
        >>> fed = Federation.from_csv("table.csv")
        >>> fed.names, fed.input_shape
        (('a', 'b'), (2,))
        """
        from fedflux.data.sources.table import read_table

        columns = {"label": label, "client": client, "group": group, "cluster": cluster, "part": part}
        return _federation(
            read_table(Path(path), columns, features, None if test is None else Path(test), class_names, scale)
        )

    @staticmethod
    def from_npz(path: str | Path, *, scale: Requested = "auto") -> "Federation":
        """From an .npz file with x, y, client and so on; `auto` keeps the scale that the file declares.

        >>> np.savez("mine.npz", x=np.zeros((40, 5), np.float32), y=[0, 1] * 20, client=[0] * 20 + [1] * 20)
        >>> len(Federation.from_npz("mine.npz"))
        2
        """
        return _loaded("npz", path, scale)

    @staticmethod
    def from_folder(path: str | Path, *, scale: Requested = "auto") -> "Federation":
        """From images in CLASS/ or CLIENT/CLASS/, optionally under train/ and test/.

        >>> from PIL import Image
        >>> for clinic in ("north", "south"):
        ...     for kind in ("ill", "well"):
        ...         Path("scans", clinic, kind).mkdir(parents=True)
        ...         for k in range(5):
        ...             Image.new("L", (16, 16), 40 * k).save(f"scans/{clinic}/{kind}/{k}.png")
        >>> fed = Federation.from_folder("scans")
        >>> fed.names, fed.class_names, fed.input_shape
        (('north', 'south'), ('ill', 'well'), (1, 16, 16))
        """
        return _loaded("folder", path, scale)


def _loaded(name: str, path: str | Path, scale: Requested) -> "Federation":
    from fedflux.data.sources import load
    from fedflux.data.sources.own import with_scale

    return _federation(with_scale(load(name, Path(path)), scale), warned=True)


def _federation(dataset: "Dataset", warned: bool = False) -> "Federation":
    from fedflux.data.partition import Partition, partition
    from fedflux.data.sources import warn_dependent

    if not warned:
        warn_dependent(dataset)
    return partition(dataset, Partition())
