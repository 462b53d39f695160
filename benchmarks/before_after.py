"""Two versions of the source side by side: rounds alternate in one session, and their ratios are told.

`python -m benchmarks.before_after OLD/src NEW/src` starts a process for each and gives them turns: on a machine that
is shared, only what is measured within the same second can be compared.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from statistics import median
from typing import IO

WORKER = """
import json, sys, time
import numpy as np, torch
from fedflux.algorithms import Settings, make_algorithm
from fedflux.data import Dataset, Examples, Partition, partition
from fedflux.engine import Training, Work, make_engine, one_thread
draw = np.random.default_rng(0)
clients, samples, algorithm, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
total = clients * samples
x = draw.integers(0, 256, (total, 1, 28, 28), dtype=np.uint8)
y = draw.integers(0, 10, total)
data = Dataset("noise", Examples(x, y), Examples(x[: total // 5], y[: total // 5]), 10)
federation = partition(data, Partition("px", 4, clients=clients, seed=1)).blind()
training = Training(2, 64, 0.005, 0.9)
method = make_algorithm(algorithm, Settings(rounds=1000, training=training, seed=1, cluster_round=3))
with one_thread():
    work = Work(clients, samples, 64, 2, 1000)
    engine = make_engine(name, "lenet5", federation, 1, "cpu", "fp32", work)
    state, number = method.init(federation, engine), 0
    for line in sys.stdin:
        number += 1
        begin = time.perf_counter()
        state, _ = method.round(state, federation.cohort(range(clients), number), engine)
        print(json.dumps(time.perf_counter() - begin), flush=True)
"""


def start(source: str, *arguments: str) -> "subprocess.Popen[str]":
    """A process that runs a round whenever it is told to."""
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def one_round(process: "subprocess.Popen[str]") -> float:
    """Seconds of the next round."""
    told: IO[str] | None = process.stdin
    heard: IO[str] | None = process.stdout
    assert told is not None
    assert heard is not None
    told.write("\n")
    told.flush()
    return float(json.loads(heard.readline()))


def main() -> None:
    """Print the median of paired ratios: above one, the second version is faster."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--algorithm", default="flux")
    parser.add_argument("--engine", default="processes")
    given = parser.parse_args()
    sources = (given.old, given.new)
    processes = [start(one, str(given.clients), str(given.samples), given.algorithm, given.engine) for one in sources]
    seconds: list[list[float]] = [[], []]
    for number in range(given.rounds + 4):
        for turn in (0, 1) if number % 2 else (1, 0):
            taken = one_round(processes[turn])
            if number >= 4:  # the first rounds start workers, cluster and fill caches
                seconds[turn].append(taken)
    for process in processes:
        process.kill()
    ratios = [old / new for old, new in zip(*seconds, strict=True)]
    told = {"rounds": len(ratios), "ratio": median(ratios), "old": median(seconds[0]), "new": median(seconds[1])}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
