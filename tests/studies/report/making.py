"""Made-up run folders: the files that a run leaves, filled with numbers that tests know."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.clustering.making import Population, describe_samples

from fedflux.descriptors.wire import to_arrays

PHASES = ("training", "descriptor", "clustering")


def write_run(
    folder: Path,
    *,
    algorithm: str = "flux",
    clients: int = 6,
    clusters: int = 2,
    rounds: int = 3,
    seed: int = 42,
    shift: str = "px",
    lift: float = 0.0,
    seconds: float = 1.0,
    describe: bool = True,
    samples: bool = True,
    finished: bool = True,
    classes: int = 3,
    result: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run whose client k sits in cluster k mod `clusters`, found as it is true, at 80 + k + `lift` percent."""
    folder.mkdir(parents=True)
    truth = [k % clusters for k in range(clients)]
    known = [80.0 + k % 15 + lift for k in range(clients)]
    settings = {
        **{"dataset": "digits", "shift": shift, "level": 4, "seed": seed, "algorithm": algorithm, "clients": clients},
        **{"model": "mlp", "rounds": rounds, "participation": 1.0, "out": str(folder), "group": "digits, 6 clients"},
        **{"label": algorithm, "identity": "ab" * 16, "checksum": "cd" * 32, "revision": 1},
        **{"command": f"fedflux run --dataset digits --seed {seed}"},
        **{"ran_on": {"engine": "loop", "device": "cpu", "torch": "2.6", "fedflux": "0.1"}},
        **config,
    }
    _write(folder / "config.json", settings)
    _lines(folder / "rounds.jsonl", [_round(r, truth, seconds) for r in range(1, rounds + 1)])
    _lines(folder / "events.jsonl", [{"time": f"2026-01-01T00:00:{seconds:02.0f}+00:00", "event": "started"}])
    if not finished:
        return folder
    clustered = algorithm == "flux"
    found = truth if clustered else [0] * clients
    answer = {
        **{"known": float(np.mean(known)), "known_per_client": known, "known_worst": min(known)},
        **{"known_quantile10": float(np.quantile(known, 0.1)), "test": float(np.mean(known)) - 1},
        **{"test_per_client": [k - 1 for k in known], "test_worst": min(known) - 1, "test_quantile10": min(known)},
        **{"worst": min(known), "assignment": found, "truth": truth, "clusters_found": len(set(found))},
        **{"clusters_true": clusters, "ari": 1.0, "nmi": 1.0, "pairs_right": 1.0, "cluster_round": 2},
        "test_placements": [
            {"client": k, "cluster": found[k], "distances": [1.0 + abs(j - found[k]) for j in range(clusters)]}
            for k in range(clients)
        ],
        "why": [
            {"clusters": [0, 1], "shift": "P(X)", "classes": [0, 1], "words": "clusters 0 and 1 differ in P(X): so"}
        ],
        **{f"seconds_{phase}": seconds for phase in PHASES},
        **{"bytes_up": 100 * clients * rounds, "bytes_down": 50 * clients * rounds, "rounds": rounds},
        **{"seconds": 3 * seconds, "engine": "loop", "device": "cpu", "command": "x", "run_dir": str(folder)},
    }
    if not clustered:
        answer |= {"test_placements": None, "why": None, "cluster_round": None, "pairs_right": 0.4}
    _write(folder / "result.json", {**answer, **(result or {})})
    if clustered and describe:
        np.savez(folder / "descriptors.npz", **_descriptors(truth))
    if samples:
        np.savez(folder / "samples.npz", **make_samples(range(min(clients, 12)), classes))
    return folder


def make_samples(clients: Any, classes: int, side: int = 4, channels: int = 1) -> dict[str, Any]:
    """One image a class and client, all different, the same in every run."""
    owner, label = np.repeat(list(clients), classes), np.tile(np.arange(classes), len(list(clients)))
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(len(owner), side, side, channels), dtype=np.uint8)
    return {"client": owner, "label": label, "image": image}


def _round(number: int, truth: list[int], seconds: float) -> dict[str, Any]:
    members = {str(k): 10.0 * number + k % 7 for k in range(len(truth))}
    return {
        "round": number,
        "validation": members,
        "bytes_up": dict.fromkeys(members, 100),
        "bytes_down": dict.fromkeys(members, 50),
        "seconds": {"training": seconds},
        "events": ["round 2: 2 clusters"] if number == 2 else [],
    }


def _descriptors(truth: list[int]) -> dict[str, Any]:
    world, rng = Population(1, classes=2, length=3), np.random.default_rng(0)
    move = 30.0 * np.ones((2, 3))
    clients = [world.draw(rng, 40, move=kind * move) for kind in truth]
    arrays: dict[str, Any] = dict(to_arrays(describe_samples(clients, 2)))
    return {**arrays, "clients": np.arange(len(truth)), "labels": np.array(truth), "truth": np.array(truth)}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
