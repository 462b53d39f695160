"""What a run came to: its figures by name, its tables by client and by round, a picture, the report, the models."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedflux.files import read_lines, read_object
from fedflux.runs.storage.folder import ROUNDS_FILE, TRAINED_FILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedflux.library.trained import TrainedRun

CLIENT_COLUMNS = {"cluster": "assignment", "known": "known_per_client", "test": "test_per_client", "truth": "truth"}
"""Columns of the table of clients, and the keys of the result that they are made of."""

MISSING = "–"
MOST_ROWS = 30
"""Of the table that a notebook shows; of more the first and the last are shown."""


class Result(Mapping[str, Any]):
    """The figures of a finished run, as `fedflux run --json` prints them, and what is made of them.

    Examples
    --------
    >>> result = fedflux.run(dataset="digits", shift="px", level=1, clients=4, rounds=3)
    >>> result["known"] == result.known, result.worst <= result.known
    (True, True)
    >>> list(result.clients.columns), len(result.clients), len(result.rounds)
    (['cluster', 'known', 'test', 'truth'], 4, 3)
    >>> result.load().clients
    ('0', '1', '2', '3')
    """

    def __init__(self, values: Mapping[str, Any], folder: Path, model: object = None) -> None:
        self._values = dict(values)
        self._model = model
        self.folder = folder
        """Where the run lies: gone with this object where no `out` was named."""

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        names = ("known", "test", "worst", "clusters_found", "rounds")
        told = {name: self._values.get(name) for name in names}
        shown = [f"{name}={value:.4g}" for name, value in told.items() if isinstance(value, int | float)]
        return f"Result({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """In a notebook: the verdict, the figures, the clients."""
        without = self._values.get("no_test_phase")
        told = [self._values.get("verdict"), None if without is None else f"No test phase: {without}."]
        words = "".join(f"<p>{escape(str(line))}</p>" for line in told if line is not None)
        table = self.clients
        for name in table.select_dtypes("float"):
            form = "{:.1f}" if name in CLIENT_COLUMNS else "{:.3g}"  # percent, and scores of anybody's own
            table[name] = [MISSING if value != value else form.format(value) for value in table[name]]
        shown = table.to_html(max_rows=MOST_ROWS, na_rep=MISSING)
        return f"<p><b>{escape(repr(self))}</b></p>{words}{shown}"

    @property
    def known(self) -> float | None:
        """Mean score of clients with the model of the cluster they trained in, in percent.

        `result["score"]` names it: accuracy, or macro ROC AUC.
        """
        return self._score("known")

    @property
    def test(self) -> float | None:
        """The same where clients are placed by their features alone; None where features cannot tell
        (`result["no_test_phase"]` says why).
        """
        return self._score("test")

    @property
    def worst(self) -> float | None:
        """The lowest of the clients' known scores."""
        return self._score("worst")

    @property
    def unseen(self) -> float | None:
        """Mean score of clients that were held out of training; None where nobody was."""
        return self._score("unseen")

    def _score(self, name: str) -> float | None:
        value = self._values.get(name)
        return None if value is None else float(value)

    @property
    def client_names(self) -> list[str]:
        """The clients that trained, in order."""
        if self._values.get("client_names"):
            return [str(name) for name in self._values["client_names"]]
        told = read_object(self.folder / TRAINED_FILE)
        count = len(self._values.get("known_per_client") or ())
        return [str(name) for name in told["form"]["client_names"]] if told else [str(k) for k in range(count)]

    @property
    def clients(self) -> "DataFrame":
        """A line for each client that trained, by name: its cluster, its scores, the users' own metrics."""
        from pandas import DataFrame, Index

        columns = {name: self._values[key] for name, key in CLIENT_COLUMNS.items() if self._values.get(key) is not None}
        for metric, phases in (self._values.get("metrics") or {}).items():
            for phase in ("known", "test"):
                if f"{phase}_per_client" in phases:
                    columns[f"{metric} {phase}"] = phases[f"{phase}_per_client"]
        return DataFrame(columns, index=Index(self.client_names, name="client"))

    @property
    def rounds(self) -> "DataFrame":
        """A line for each round: mean validation score, traffic in bytes, seconds, what happened."""
        from pandas import DataFrame

        lines = read_lines(self.folder / ROUNDS_FILE)
        shown = [
            {
                "round": line["round"],
                "validation": _mean(line["validation"].values()),
                "bytes_up": sum(line["bytes_up"].values()),
                "bytes_down": sum(line["bytes_down"].values()),
                "seconds": sum(line["seconds"].values()),
                "events": "; ".join(line["events"]),
            }
            for line in lines
        ]
        return DataFrame(shown).set_index("round") if shown else DataFrame()

    def plot(self) -> "Figure":
        """The validation score by round, and every client's scores, clients of a cluster side by side."""
        from fedflux.library.plot import plot_result

        return plot_result(self)

    def report(self, out: str | Path | None = None) -> Path:
        """One self-contained HTML page of the run; by default `report.html` in its folder."""
        from fedflux.studies.report import write_report

        return write_report([self.folder], None if out is None else Path(out))

    def load(self) -> "TrainedRun":
        """The trained federation: it places clients, predicts, and hands out models. A model that was handed in is
        known here, wherever it was defined.
        """
        from fedflux.library.trained import load

        return load(self.folder, model=self._model)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        return dict(self._values)


def _mean(values: Any) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")
