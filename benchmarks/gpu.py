"""One GPU: clients stacked or side by side against the loop, in the same run and precision.

    python -m benchmarks.gpu [--cells lenet5:10:fp32,lenet5:100:bf16,resnet9:10:fp32] [--compiled] [--lanes 1,5]
    python -m benchmarks.gpu --branches

Examples trained on per second, medians of a few rounds of synthetic images after one that does not count. The loop is
timed on two clients, since clients do not matter to it. `--lanes` tries other numbers of clients side by side.
`--branches` instead says what a second model a client costs beside the first: both read the same data.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from json import dumps
from statistics import median
from time import perf_counter

import numpy as np
import torch

from fedflux.data import Dataset, Examples, Federation
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.engine import Backend, Job, Key, Training, make_backend
from fedflux.engine.batched import replay
from fedflux.engine.batched.stacked import stacked_engine
from fedflux.engine.modes import torch_settings
from fedflux.models import build_model

TRAINING = Training(epochs=1, batch_size=64, lr=0.005, momentum=0.9)
CELLS = "lenet5:10:fp32,lenet5:10:bf16,lenet5:100:fp32,lenet5:100:bf16,resnet9:10:fp32,resnet9:10:bf16"
SHAPE = {"lenet5": (1, 28, 28), "resnet9": (3, 32, 32)}
SAMPLES = {"lenet5": 4800, "resnet9": 960}
ROUNDS, TURNS = 3, 15


def federation(model: str, clients: int) -> Federation:
    """Clients of random images, as large as the paper's."""
    draw = np.random.default_rng(0)
    total = clients * SAMPLES[model]
    train = Examples(draw.integers(0, 256, (total, *SHAPE[model]), dtype=np.uint8), draw.integers(0, 10, total))
    none = np.empty(0, dtype=np.int64)
    dataset = Dataset("noise", train, Examples(train.x[:0], train.y[:0]), 10)
    rows = [ClientRows(train=cut, validation=none, test=none) for cut in np.split(np.arange(total), clients)]
    return Federation(dataset, rows, [Pattern()] * clients, 42)


def speed(engine: Backend, held: Federation, clients: int) -> float:
    """Examples a second of the median round."""
    seconds = []
    cohort = held.cohort(range(clients))
    for number in range(ROUNDS + 1):
        torch.cuda.synchronize()
        begin = perf_counter()
        engine.train(engine.initial(), cohort, [Job(k, (0,)) for k in range(clients)], TRAINING, Key(42, number + 1))
        torch.cuda.synchronize()
        seconds.append(perf_counter() - begin)
    return sum(held.size(k, "train") for k in range(clients)) / median(seconds[1:])


def second_branch(model: str, clients: int, precision: str) -> None:
    """One line of JSON: the time of a second model a client over that of the first, by rounds that take turns."""
    with torch_settings("cuda", precision):
        held = federation(model, clients)
        engine = stacked_engine(build_model(model, held.input_shape, held.classes, 1), "cuda", precision, (0.5, 0.5))
        start, cohort = engine.initial().take([0, 0]), held.cohort(range(clients))
        jobs = [[Job(k, (row,)) for row in range(count) for k in range(clients)] for count in (1, 2)]
        ratios = []
        for number in range(TURNS + 1):
            seconds = []
            for some in jobs:
                torch.cuda.synchronize()
                begin = perf_counter()
                engine.train(start, cohort, some, TRAINING, Key(42, number + 1))
                torch.cuda.synchronize()
                seconds.append(perf_counter() - begin)
            ratios.append((seconds[1] - seconds[0]) / seconds[0])
    found = {"second_branch": round(median(ratios[1:]), 3), "seconds_of_the_first": round(seconds[0], 4)}
    print(dumps({"model": model, "clients": clients, "precision": precision, **found}), flush=True)


def measure(model: str, clients: int, precision: str, compiled: Sequence[bool], lanes: Sequence[int]) -> None:
    """One line of JSON a variant."""
    with torch_settings("cuda", precision):
        _measure(model, clients, precision, compiled, lanes)


def _measure(model: str, clients: int, precision: str, compiled: Sequence[bool], lanes: Sequence[int]) -> None:
    held = federation(model, clients)
    loop = speed(make_backend("loop", model, held, 1, "cuda", precision), held, 2)
    print(dumps({"model": model, "clients": clients, "precision": precision, "loop": round(loop)}), flush=True)
    for width in lanes if model == "resnet9" else lanes[:1]:
        replay.LANES = width
        for form in compiled:
            built = build_model(model, held.input_shape, held.classes, 1)
            found = speed(stacked_engine(built, "cuda", precision, (0.5, 0.5), form), held, clients)
            variant = {"lanes": width, "compiled": form, "examples_a_second": round(found)}
            ratio = round(found / loop, 2)
            print(dumps({"model": model, "precision": precision, **variant, "ratio": ratio}), flush=True)


def main() -> None:
    """All cells."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--compiled", action="store_true", help="compiled ones as well")
    parser.add_argument("--lanes", default=str(replay.LANES))
    parser.add_argument("--branches", action="store_true", help="what a second model a client costs, and no more")
    given = parser.parse_args()
    for cell in given.cells.split(","):
        model, clients, precision = cell.split(":")
        if given.branches:
            second_branch(model, int(clients), precision)
            continue
        forms = [False, True] if given.compiled else [False]
        measure(model, int(clients), precision, forms, [int(n) for n in given.lanes.split(",")])


if __name__ == "__main__":
    main()
