"""Slow drift and no drift: who is found, how soon, and in how many rounds somebody is said to drift who did not.

python -m benchmarks.slow_drift [--speed 0.02] [--chunk 60] [--rounds 40] [--seeds 50 51]   (from the root)

Clients hold ten Gaussian classes with unlike covariances. Their first description is of three chunks; then one chunk a
round. `raw`: all classes move by one vector, of this many deviations in the average covariance; `shared`: by this many
deviations each, in one direction of its own covariance; `each`: every class in a direction of its own. Static
federations have 100 clients. An alarm does not begin a history anew here, so that all rounds are of one kind.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from tests.clustering.making import Population, describe_samples

from fedflux.clustering.change.drift import History, add_descriptors, alarms, log_change, stronger
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import over_the_wire

KINDS = ("raw", "shared", "each")


def movement(world: Population, kind: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """(classes × l): one deviation of movement."""
    classes, length = world.mean.shape
    if kind == "raw":
        covariance = np.einsum("uji,ujk->uik", world.mix, world.mix).mean(axis=0)
        vector = rng.normal(size=length)
        return np.asarray(np.tile(vector / np.sqrt(vector @ np.linalg.solve(covariance, vector)), (classes, 1)))
    directions = rng.normal(size=(1 if kind == "shared" else classes, length))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return np.asarray(np.einsum("uj,uji->ui", np.broadcast_to(directions, (classes, length)), world.mix))


def watch(seed: int, clients: int, kind: str, told: argparse.Namespace, speed: float) -> NDArray[np.bool_]:
    """(rounds × clients): who is said to drift."""
    rng, world = np.random.default_rng(seed), Population(seed)
    step = speed * movement(world, kind, rng)

    def draw(round: int, size: int) -> Descriptors:
        samples = [world.draw(rng, size, move=round * step) for _ in range(clients)]
        return describe_samples(samples, world.classes)

    known = draw(0, 3 * told.chunk)
    history, said = History.of(known), []
    for round in range(1, told.rounds + 1):
        new = draw(round, told.chunk)
        history = history.grown(new)
        said.append(alarms(stronger(log_change(known, new), history.log_change()), told.false_alarms))
        known, history = over_the_wire(add_descriptors(known, new)), history.folded()
    return np.array(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=0.02)
    parser.add_argument("--chunk", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--static-clients", type=int, default=100)
    parser.add_argument("--false-alarms", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[50, 51])
    told = parser.parse_args()
    for kind in KINDS:
        said = np.concatenate([watch(seed, told.clients, kind, told, told.speed) for seed in told.seeds], axis=1)
        first = np.where(said.any(axis=0), said.argmax(axis=0) + 1, told.rounds + 1)
        found = 100 * (first <= told.rounds).mean()
        print(f"{kind}: {found:.0f} % of {said.shape[1]} clients, median round {np.median(first):g}", flush=True)
    still = np.concatenate([watch(seed, told.static_clients, "raw", told, 0.0) for seed in told.seeds])
    rounds = still.any(axis=1).sum()
    print(f"static: an alarm in {rounds} of {len(still)} rounds of {told.static_clients} clients", end=", ")
    print(f"{still.sum()} of {still.size} client-rounds")


if __name__ == "__main__":
    main()
