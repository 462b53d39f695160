"""How long cells will take: from those that are finished here, else from one short run that is timed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from fedflux.runs.config import RunConfig, config_of
from fedflux.runs.runner import run_config
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell

PASSES = {
    **{"ifca": 2.3, "feddrift": 1.5, "fedem": 6.0, "fedrc": 6.0, "apfl": 2.0, "ditto": 2.0, "pfedme": 5.0, "atp": 2.2},
    **{"fedrep": 1.5, "feroma": 1.2, "flux": 1.2, "flux-prior": 1.2, "oracle": 1.2, "flux-soft": 1.2},
    "flux-dynamic": 1.3,
}
"""Work of a method, FedAvg's being 1: passes over the data, as docs/baselines.md has them, a forward pass a third."""
START = 1.0
"""Seconds that a run takes before its first round and after its last."""
TRAINED = 0.8
"""The share of clients' examples that is not for validation."""
TIMED = 4000
"""Examples of the run that is timed."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of cells by identity, and what they are read off."""

    seconds: Mapping[str, float]
    source: str

    def hours(self, cells: Iterable[Cell], jobs: int) -> float:
        """Of so many processes."""
        return sum(self.seconds[cell.identity] for cell in cells) / max(jobs, 1) / 3600


def estimated(cells: list[Cell], sizes: Mapping[str, int], store: Store) -> Estimate:
    """For every cell; `sizes` are of datasets' training parts."""
    rates: dict[tuple[str, str], float] = {}
    sources = set()
    finished = _finished(store)
    for cell in cells:
        kind = _kind(cell.config)
        if kind not in rates:
            seen = [seconds / _work(config, sizes) for config, seconds in finished if _kind(config) == kind]
            sources.add("finished cells" if seen else "a timed round")
            rates[kind] = median(seen) if seen else _timed(cell.config, sizes)
    seconds = {cell.identity: START + rates[_kind(cell.config)] * _work(cell.config, sizes) for cell in cells}
    return Estimate(seconds, " and ".join(sorted(sources)))


def _kind(config: RunConfig) -> tuple[str, str]:
    return config.dataset, config.model


def _finished(store: Store) -> list[tuple[RunConfig, float]]:
    return [(config_of(cell["config"]), max(cell["seconds"] - START, 0.01)) for cell in store.cells()]


def _work(config: RunConfig, sizes: Mapping[str, int]) -> float:
    """Examples that go through the model, in FedAvg's currency."""
    clients = config.clients or 1
    drawn = config.samples_per_client
    dealt = config.data_fraction * sizes.get(config.dataset, 0) if drawn is None else drawn * clients
    passes = PASSES.get(config.algorithm, 1.0) * config.rounds * config.epochs * config.participation
    return max(1.0, TRAINED * dealt * config.duplicate * passes)


def _timed(config: RunConfig, sizes: Mapping[str, int]) -> float:
    """Seconds an example, of a round of FedAvg on a part of the data."""
    share = min(1.0, config.data_fraction, TIMED / max(sizes.get(config.dataset, TIMED), 1))
    few: dict[str, Any] = {"samples_per_client": None if config.samples_per_client is None else 40}
    with TemporaryDirectory(prefix="fedflux-") as folder:
        short = replace(
            config,
            algorithm="fedavg",
            rounds=1,
            duplicate=1,
            participation=1.0,
            data_fraction=share,
            drift=None,
            preset=None,
            cluster_round="auto",
            epsilon=None,
            dp=None,
            out=str(Path(folder) / "run"),
            store="none",
            resume=False,
            **few,
        )
        result = run_config(short)
    return float(result["seconds_training"]) / _work(short, sizes)
