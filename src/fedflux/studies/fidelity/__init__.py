"""R1 measured: how far the distance of two descriptors is from the Wasserstein distance of what they describe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources import load
from fedflux.errors import FedfluxError
from fedflux.files import jsonable, make_folder, write_json, write_npz
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation
from fedflux.studies.bench.machine import describe
from fedflux.studies.fidelity.clouds import clouds
from fedflux.studies.fidelity.compared import Pairs, compare_clouds
from fedflux.studies.fidelity.plot import save_plot
from fedflux.studies.fidelity.transport import check_transport
from fedflux.studies.paper import fidelity_rows

__all__ = ["CLIENTS", "LEVELS", "POINTS", "fidelity"]
LEVELS = "3,5,7"
CLIENTS = 30
"""With 10 rounds 300 clouds a level, hence the paper's 44,850 pairs."""
POINTS = 200
RESULT = "fidelity.json"
PLOT = "fidelity.png"

Array = NDArray[np.float64]
Tell = Callable[[str, float], None]
"""What is being done, and the share of everything that is done."""


def fidelity(
    told: Mapping[str, Any],
    levels: Sequence[int],
    points: int = POINTS,
    out: Path | None = None,
    tell: Tell = lambda words, share: None,
) -> dict[str, Any]:
    """Compare all pairs of client-rounds at every level; the answer is what `fedflux fidelity --json` prints."""
    if points < 2:
        raise FedfluxError(f"--points {points}: give 2 or more")
    told = {"shift": "pygx", **told, "algorithm": "fedavg"}
    config = make_config({**told, "level": levels[0]})
    check_transport()
    dataset = load(config.dataset, Path(config.data_dir) if config.data_dir else None)
    if dataset.client_names is None:
        told = {"clients": CLIENTS, **told}
    configs = [build_federation(make_config({**told, "level": level}), dataset)[1] for level in levels]
    config = configs[0]
    total = (config.clients or 0) * config.rounds
    total = total * (total - 1) // 2
    if not total:
        raise FedfluxError("fidelity compares pairs: give 2 or more clients, or rounds")
    folder = None if out is None else make_folder(out, "fidelity", RESULT, {"pairs", "levels"})
    printed = fidelity_rows(config.dataset, config.shift)
    found: dict[int, Pairs] = {}
    rows = []
    for place, one in enumerate(configs):
        begin = perf_counter()
        step = _Step(tell, one.level, place, len(configs))
        seen = clouds(one, dataset, points, partial(step.round, of=one.rounds))
        middle = perf_counter()
        full = config.covariance == "full"
        pairs, counted = compare_clouds(seen, full, partial(step.pairs, of=total))
        found[one.level] = pairs
        seconds = {"training": middle - begin, "distances": perf_counter() - middle}
        rows.append({"level": one.level, **_figures(pairs), **counted, "seconds": seconds})
        rows[-1]["paper"] = {k: printed[one.level][k] for k in KEYS} if one.level in printed else None
    everything = np.concatenate([np.abs(p.descriptor_points - p.points) for p in found.values()])
    answer = {
        **_spread(everything),
        "levels": rows,
        **{
            key: getattr(config, key)
            for key in ("dataset", "shift", "clients", "rounds", "seed", "covariance", "components", "projector")
        },
        "points": points,
        "machine": describe("cpu" if config.device == "auto" else config.device),
    }
    if folder is not None:
        answer["path"] = str(folder)
        arrays = {f"level_{n}_{name}": a for n, pairs in found.items() for name, a in pairs.arrays().items()}
        write_npz(folder / "pairs.npz", {k: a.astype(np.float32) if a.dtype != bool else a for k, a in arrays.items()})
        save_plot(found, rows, f"{config.dataset}, {config.shift}", folder / PLOT)
        write_json(folder / RESULT, answer)
    return dict(jsonable(answer))


KEYS = ("max", "min", "mean", "std")


def _spread(error: Array) -> dict[str, Any]:
    """The columns of tab:eps_R1."""
    return {"pairs": len(error), **{key: float(getattr(np, key)(error)) for key in KEYS}}


def _figures(pairs: Pairs) -> dict[str, Any]:
    """|descriptor − W2| against points over all pairs, then within rounds, against Gaussians, and of the marginals."""
    sampled = _compared(pairs.descriptor_points, pairs.points)
    within = pairs.same_round
    return {
        **sampled,
        "same_round": _compared(pairs.descriptor_points[within], pairs.points[within]) if within.any() else None,
        "gaussian": _compared(pairs.descriptor, pairs.gaussian),
        "marginal": _compared(pairs.descriptor_marginal, pairs.points_marginal),
        "marginal_gaussian": _compared(pairs.descriptor_marginal, pairs.gaussian_marginal),
    }


def _compared(distance: Array, w2: Array) -> dict[str, Any]:
    """The columns, with what makes them readable: the size of W2, the error's share of it, and the correlation."""
    varied = len(w2) > 1 and distance.std() > 0 and w2.std() > 0
    return {
        **_spread(np.abs(distance - w2)),
        "w2_mean": float(w2.mean()),
        "relative": float(np.abs(distance - w2).sum() / w2.sum()) if w2.sum() > 0 else None,
        "correlation": float(np.corrcoef(distance, w2)[0, 1]) if varied else None,
    }


class _Step:
    """How far one of several levels is: the first half is training, the second distances."""

    def __init__(self, tell: Tell, level: int, place: int, count: int) -> None:
        self._tell, self._level, self._place, self._count = tell, level, place, count
        self._say("training", 0.0)

    def round(self, round: int, of: int) -> None:
        """After a round."""
        self._say(f"round {round} of {of}", 0.5 * round / of)

    def pairs(self, done: int, of: int) -> None:
        """After some pairs."""
        self._say(f"{done:,} of {of:,} pairs", 0.5 + 0.5 * done / of)

    def _say(self, words: str, share: float) -> None:
        self._tell(f"level {self._level}: {words}", (self._place + share) / self._count)
