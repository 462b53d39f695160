"""The server's app: the run of `fedflux run`, with nodes for clients."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

from flwr.serverapp import ServerApp

from fedflux.data import Federation
from fedflux.deploy.flower.aggregation import robust
from fedflux.deploy.flower.engine import FlowerEngine
from fedflux.deploy.flower.records import digest
from fedflux.deploy.flower.settings import SIMULATED, read_settings
from fedflux.deploy.flower.simulated import federation_of
from fedflux.runs.runner import decide_model, run_deployed
from fedflux.runs.session import Progress

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    """Run to the end."""
    run(grid, context.run_config)


def run(grid: Any, run_config: Mapping[str, Any]) -> dict[str, Any]:
    """One run over a Grid: its result, which lies in the folder `out` too."""
    config, deployment = read_settings(run_config)

    def truth(declared: Federation) -> Federation:
        dealt = federation_of(run_config)
        return dealt if config.drift else replace(declared, _truth=_first(dealt.truth, len(declared)))

    simulated = deployment.data == SIMULATED
    engine = FlowerEngine(
        grid,
        deployment,
        partial(decide_model, config),
        config.seed,
        digest({}, str(Path(config.out or "").resolve())),
        truth if simulated else None,
    )
    return run_deployed(config, engine, _tell)


def _first(truth: Any, count: int) -> Any:
    return None if truth is None else truth[:count]


def _tell(progress: Progress) -> None:
    """A line for each thing that happened, as a round ends."""
    log = getLogger("flwr")
    words = f"round {progress.round} of {progress.rounds}: validation {progress.accuracy:.1f}%"
    log.log(INFO, "fedflux: %s, %s clusters", words, progress.clusters)
    for event in progress.events:
        log.log(INFO, "fedflux: %s", event)
