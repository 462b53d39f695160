"""What a finished run leaves on the server: `result.json` and one model file a cluster."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

from fedflux.deploy.flower.strategy import FluxStrategy
from fedflux.files import write_json, written_whole

RESULT_FILE = "result.json"


def summarise(strategy: FluxStrategy) -> dict[str, Any]:
    """The run in plain values: accuracies in percent, clusters, refusals, bytes by round and kind of message."""
    state = strategy.state
    known = {client: 100 * score for client, score in strategy.known.items()}
    return {
        "rounds": state.round,
        "cluster_round": state.cluster_round,
        "clusters_found": len(state.models) if state.clusters is not None else None,
        "assignment": dict(state.assignment),
        "known": float(np.mean(list(known.values()))) if known else None,
        "known_per_client": known,
        "validation": {r: {k: 100 * v for k, v in scores.items()} for r, scores in strategy.validation.items()},
        "unlabelled": {
            client: {**asdict(one), "distance": one.distance} for client, one in strategy.placements.items()
        },
        "refused": dict(state.refused),
        "bytes": {r: {"down": t.down, "up": t.up} for r, t in strategy.exchange.traffic.items()},
        "events": strategy.events,
    }


def save_result(folder: Path, strategy: FluxStrategy) -> None:
    """Models first: the result says that they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    models = strategy.state.models
    for row in range(len(models)):
        with written_whole(folder / f"cluster-{row}.safetensors") as handle:
            handle.write(save({name: tensor.contiguous() for name, tensor in models.row(row).items()}))
    write_json(folder / RESULT_FILE, summarise(strategy))
