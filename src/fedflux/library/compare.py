"""Methods beside each other from Python: on datasets by name, or on federations that are handed in, as a table."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from fedflux.algorithms.registry import name_of
from fedflux.clustering import name_of_clusterer
from fedflux.data import Federation
from fedflux.errors import FedfluxError
from fedflux.library.run import check_federation
from fedflux.models import OwnModel
from fedflux.runs.config import make_config
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell, Status, plan
from fedflux.studies.compare import compare as run_cells
from fedflux.studies.grid import comparison
from fedflux.studies.workers import work, work_here

if TYPE_CHECKING:
    from pandas import DataFrame

Federations = Federation | Mapping[str, Federation]


def compare(
    federation: Federations | None = None,
    *,
    algorithms: Sequence[object] = ("fedavg", "flux"),
    shifts: Sequence[str] | str | None = None,
    levels: Sequence[int] | str | int | None = None,
    seeds: Sequence[int] | str | int | None = None,
    model: object = None,
    clusterer: object = None,
    reference: str | None = None,
    jobs: int = 1,
    progress: bool | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> "DataFrame":
    """Compare methods; see `fedflux.compare`."""
    own = None if model is None or isinstance(model, str) else OwnModel.of(model)
    objects = [one for one in (*algorithms, clusterer, own, federation) if one is not None and not isinstance(one, str)]
    if jobs > 1 and objects:
        words = "what is handed in as an object lives in this process alone"
        raise FedfluxError(f"jobs={jobs}: {words}; name it as package.module:Name, or leave jobs out")
    shared = {
        **options,
        **({} if model is None else {"model": model if own is None else own.name}),
        **({} if clusterer is None else {"clusterer": name_of_clusterer(clusterer)}),
    }
    with _folder(out) as folder:
        given = {
            "algorithms": [name_of(one) for one in algorithms],
            "shifts": _listed(shifts, str),
            "levels": _listed(levels, int),
            "seeds": _listed(seeds, int),
            "jobs": jobs,
            "reference": None if reference is None else name_of(reference),
            "out": folder,
        }
        answers = [
            _compared(given, {**brought, **shared}, one, name, own, progress)
            for name, brought, one in _federations(federation)
        ]
        return _table(answers)


def _compared(
    given: Mapping[str, Any],
    shared: dict[str, Any],
    federation: Federation | None,
    name: str | None,
    model: OwnModel | None,
    progress: bool | None,
) -> dict[str, Any]:
    """All cells of one federation, or of the dataset that the options name."""
    if federation is not None and given["shifts"] is None:  # its clients are what they are
        given = {**given, "shifts": [make_config(shared).shift]}
    wanted, others = comparison(given, shared, None)
    dataset = None if federation is None else federation.dataset
    grid = (wanted.algorithms, wanted.shifts, wanted.levels, wanted.seeds)
    cells = plan(others, *grid, wanted.out, dataset, model)
    here = partial(_here, dataset=dataset, model=model)
    with _bar_of(cells, progress) as show:
        store = Store(Path(cells[0].config.store or wanted.out))
        status: list[Status] = []

        def on_change(now: Status) -> None:
            status[:] = [now]
            show(now)

        answer = run_cells(cells, store, wanted.jobs, wanted.reference, on_change, here if wanted.jobs == 1 else work)
        answer["runs"] = [{key: value for key, value in row.items() if key != "group"} for row in status[0].rows()]
    for cell in answer["failed"]:
        warnings.warn(f"{cell['cell']} failed: {cell['why']}", stacklevel=4)
    if len(answer["failed"]) == len(cells):
        raise FedfluxError(f"nothing could be run: {answer['failed'][0]['why']}")
    if name is not None:
        parts = (answer["cells"], answer["runs"], *answer["differences"].values())
        for line in [line for part in parts for line in part]:
            line["dataset"] = name
    return answer


def _here(runs: Sequence[Any], jobs: int, tell: Any, **objects: Any) -> None:
    work_here(runs, tell, **objects)


def _federations(told: Federations | None) -> list[tuple[str | None, dict[str, Any], Federation | None]]:
    """What is compared on: a name, what it brings to the options, and the federation itself."""
    if told is None:
        return [(None, {}, None)]
    if isinstance(told, Federation):
        return [(told.dataset.name, {"dataset": "npz"}, told)]
    if not isinstance(told, Mapping) or not told:
        raise FedfluxError("no federation to compare on: give one, or a mapping from names to several")
    for one in told.values():
        check_federation(one)
    return [(str(name), {"dataset": "npz"}, one) for name, one in told.items()]


def _listed(told: Any, kind: Callable[[Any], Any]) -> Any:
    """Text as the command line takes it, or a list of plain values."""
    if told is None or isinstance(told, str):
        return told
    return [told] if isinstance(told, int) else [kind(one) for one in told]


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    """Where runs and their store lie; without a place, nowhere for longer than it takes."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="fedflux-") as folder:
        yield Path(folder)


@contextmanager
def _bar_of(cells: Sequence[Cell], wanted: bool | None) -> Iterator[Callable[[Status], None]]:
    """A progress bar over cells: in a terminal or a notebook, unless `wanted` says always or never."""
    with tqdm(total=len(cells), desc="compare", unit="run", disable=None if wanted is None else not wanted) as bar:

        def show(status: Status) -> None:
            bar.update(len(status.results) + len(status.failed) - bar.n)
            bar.set_postfix_str(", ".join(f"{cells[k].name} {words}" for k, words in status.running.items()))

        yield show


def _table(answers: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """A line a cell; the seeds' own figures and the paired differences ride along in `attrs`, as plain lists."""
    from pandas import DataFrame

    table = DataFrame([line for answer in answers for line in answer["cells"]]).dropna(axis=1, how="all")
    table.attrs["runs"] = [line for answer in answers for line in answer["runs"]]
    for score in ("known", "test"):
        table.attrs[f"{score}_differences"] = [line for answer in answers for line in answer["differences"][score]]
    table.attrs["reference"] = answers[0]["reference"]
    return table
