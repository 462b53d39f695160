"""The server's app: the run of `fedflux run`, with nodes for clients."""

from collections.abc import Mapping
from functools import partial
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

from flwr.serverapp import ServerApp

from fedflux.deploy.flower.aggregation import robust_mean
from fedflux.deploy.flower.engine import FlowerEngine
from fedflux.deploy.flower.settings import SIMULATED, read_settings
from fedflux.deploy.flower.simulated import with_truth
from fedflux.deploy.node.arrays import digest
from fedflux.runs.identity import deployed_identity
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
    name = digest({}, f"{Path(config.out or '').resolve()} {deployed_identity(config)}")
    truth = partial(with_truth, run_config) if deployment.data == SIMULATED else None
    engine = FlowerEngine(grid, deployment, partial(decide_model, config), config.seed, name, truth)
    return run_deployed(config, engine, _tell, robust_mean(deployment))


def _tell(progress: Progress) -> None:
    """A line for each thing that happened, as a round ends."""
    clusters = f"{progress.clusters} cluster{'s' if progress.clusters > 1 else ''}"
    done = f"round {progress.round} of {progress.rounds}: validation {progress.accuracy:.1f}%, {clusters}"
    for line in (progress.after or done, *progress.events):
        getLogger("flwr").log(INFO, "fedflux: %s", line)
