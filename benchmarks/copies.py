"""What copies of training examples cost: held as a count against really made, and cohorts that change every round.

    python benchmarks/copies.py [--clients 20] [--samples 40] [--copies 8] [--engines loop,stacked] [--device cpu]

K clients hold N copies of synthetic examples. `made` repeats a client's tensors on the host at every access, as was
done before copies were a count; `counted` is `--duplicate N`. Seconds, best of a few: asking the host for all clients,
describing them (S1 to S3), one round of training, and a round of a random fifth of the clients whose members change
every time.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from fedflux.algorithms.flux.describe import DescriptorSettings, describe_all
from fedflux.data import Federation, Labelled, Split
from fedflux.engine import Backend, Job, Key, SimulatedEngine, Training, make_backend
from fedflux.studies.bench.work import Work

TIMES = 3
TRAINING = Training(epochs=1, batch_size=64, lr=0.005, momentum=0.9)
COLUMNS = ("host", "describe", "round", "random fifth")


class Made(Federation):
    """A federation whose clients hold tensors of all their copies, repeated anew whenever they are asked for."""

    def stored(self, client: int, split: Split) -> int:
        """All copies."""
        return super().stored(client, split) * super().copies(split)

    def copies(self, split: Split) -> int:
        """There is nothing left to count."""
        return 1

    def materialise(self, client: int, split: Split, round: int = 0) -> Labelled:
        """The copies, made."""
        held = super().materialise(client, split)
        return replace(held, copies=self.duplicate if split == "train" else 1).repeated()


def federations(clients: int, samples: int, copies: int) -> dict[str, Federation]:
    """The same clients, copies made and counted; a fifth of each client's examples is validation."""
    plain = Work(clients=clients, samples=samples * 5 // 4).federation()
    rows = [replace(one, train=one.train[:samples], validation=one.train[samples:]) for one in plain.rows]
    how = (plain.dataset, rows, plain.patterns, plain.seed, plain.channels)
    return {"made": Made(*how, duplicate=copies), "counted": Federation(*how, duplicate=copies)}


def measure(federation: Federation, name: str, model: str, device: str) -> tuple[float, ...]:
    """Seconds of each column."""
    everyone = federation.cohort(range(len(federation)))
    fifth = max(1, len(federation) // 5)
    draw = np.random.default_rng(0)
    engine = make_backend(name, model, federation, 1, device)

    def host() -> None:
        for client in everyone:
            federation.materialise(client, "train")

    def description() -> None:
        stack = engine.initial().take([0])  # another object: nothing is left over from the time before
        describe_all(stack, everyone, everyone, SimulatedEngine(engine), DescriptorSettings())

    def round_of(clients: list[int]) -> None:
        cohort = federation.cohort(clients)
        engine.train(engine.initial(), cohort, [Job(client) for client in cohort], TRAINING, Key(1, 1))

    every = list(everyone)
    return (
        best(host, engine),
        best(description, engine),
        best(lambda: round_of(every), engine),
        best(lambda: round_of(draw.choice(len(federation), fifth, replace=False).tolist()), engine),
    )


def best(call: Callable[[], None], engine: Backend) -> float:
    """The shortest time after a first one that does not count."""
    found = []
    for _ in range(TIMES + 1):
        begin = perf_counter()
        call()
        if engine.device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(perf_counter() - begin)
    return min(found[1:])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=40, help="distinct training examples of a client")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--engines", default="loop,stacked")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--device", default="cpu")
    told = parser.parse_args()
    if told.device == "cpu":
        torch.set_num_threads(1)
    print(f"{told.clients} clients × {told.samples} examples × {told.copies} copies, {told.model} on {told.device}\n")
    print(f"| engine | copies | {' | '.join(COLUMNS)} |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for engine in told.engines.split(","):
        for how, federation in federations(told.clients, told.samples, told.copies).items():
            seconds = measure(federation, engine, told.model, told.device)
            print(f"| {engine} | {how} | {' | '.join(f'{s:.4f}' for s in seconds)} |", flush=True)


if __name__ == "__main__":
    main()
