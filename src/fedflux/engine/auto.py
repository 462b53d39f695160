"""Which engine suits a run: decided by the device, the model and a short calibration, and said in words."""

import os
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import current_process
from time import perf_counter

import torch
from torch import nn
from torch.func import vmap

from fedflux.engine.loop import LoopEngine, has_batch_norm
from fedflux.engine.rules import Batch, LossRule, Sgd
from fedflux.engine.stepper import Mapped

SHORT = 4.0
"""Seconds of training below which nothing is worth starting up for."""
SLOW = 0.05
"""Seconds of a step of 8 examples from which on a model gains nothing from being stacked on a CPU."""
TRIED = 8
"""Clients that are stacked for the calibration."""
GPU_RATE = {False: 1e6, True: 3e4}
"""Examples a second that one GPU trains without compiling, by whether the model has BatchNorm."""
WORTH_COMPILING = 30.0
"""Seconds of training from which on compiling pays."""


@dataclass(frozen=True)
class Work:
    """How much a run has to do."""

    clients: int
    """Clients of a round."""
    samples: float
    """Training examples of a client."""
    batch_size: int
    epochs: int
    rounds: int

    @property
    def total(self) -> float:
        """Examples met in all."""
        return self.clients * self.samples * self.epochs * self.rounds


@dataclass(frozen=True)
class Choice:
    """An engine's name, and why."""

    name: str
    words: str


def choose(model: nn.Module, image_shape: tuple[int, int, int], classes: int, device: str, work: Work) -> Choice:
    """The engine that should be fastest for this work."""
    if torch.device(device).type == "cuda":
        return Choice("stacked", "stacked, the GPU's engine")
    alone = _loop_step(model, image_shape, classes, work.batch_size)
    seconds = alone * work.total / work.batch_size
    if seconds < SHORT:
        return Choice("loop", f"loop: about {seconds:.1f} s of training")
    times = {"loop": alone}
    if min(cores(), work.clients) > 1:
        times["processes"] = alone / min(cores(), work.clients)
    if not has_batch_norm(model) and work.clients > 1 and alone < SLOW * work.batch_size / 8:
        times["stacked"] = _stacked_step(model, image_shape, classes, work)
    best = min(times, key=lambda name: times[name])
    told = ", ".join(f"{name} {1000 * times[name]:.1f} ms" for name in times)
    return Choice(best, f"{best}, by a calibration: one client's step takes {told}")


def worth_compiling(model: nn.Module, device: str, work: Work | None) -> bool:
    """Whether the work on a GPU is long enough; by its amount alone, so that a resumed run decides the same."""
    if work is None or torch.device(device).type != "cuda":
        return False
    return work.total / GPU_RATE[has_batch_norm(model)] > WORTH_COMPILING


def cores() -> int:
    """Cores that this process may use; one that works for a comparison may start no others."""
    if current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _loop_step(model: nn.Module, image_shape: tuple[int, int, int], classes: int, batch_size: int) -> float:
    """Seconds of one step of one client; big models are timed on a few examples."""
    engine = LoopEngine(deepcopy(model))
    rule = LossRule(Sgd(0.0, 0.9))
    for size in (8, batch_size):
        size = min(size, batch_size)
        batch = _batch(image_shape, classes, size)
        params = (engine.initial().row(0),)
        memory = rule.start(engine, params)
        seconds = _best_of(lambda: rule.step(engine, params, memory, batch, {}, torch.tensor(0)))  # noqa: B023
        if seconds > SLOW:
            return seconds * batch_size / size
    return seconds


def _stacked_step(model: nn.Module, image_shape: tuple[int, int, int], classes: int, work: Work) -> float:
    """Seconds of one step for each of several clients at once."""
    engine = LoopEngine(deepcopy(model))
    count = min(work.clients, TRIED)
    inside, rule = Mapped(engine), LossRule(Sgd(0.0, 0.9))
    params = (dict(engine.initial().take([0] * count).tensors),)
    batch = _batch(image_shape, classes, count * work.batch_size)
    x = batch.x.reshape(count, work.batch_size, *image_shape)
    y, where = (t.reshape(count, work.batch_size) for t in (batch.y, batch.positions))
    memory = vmap(lambda sets: rule.start(inside, sets))(params)

    def step() -> None:
        vmap(lambda p, m, x, y, w: rule.step(inside, p, m, Batch(x, y, w), {}, torch.tensor(0)))(
            params, memory, x, y, where
        )

    return _best_of(step) / count


def _batch(image_shape: tuple[int, int, int], classes: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, *image_shape, generator=generator)
    return Batch(x, torch.arange(size) % classes, torch.arange(size))


def _best_of(step: object, times: int = 3) -> float:
    """The shortest of a few times, on one thread, after one that does not count."""
    assert callable(step)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()
        found = []
        for _ in range(times):
            begin = perf_counter()
            step()
            found.append(perf_counter() - begin)
            if found[-1] > 1.0:
                break
        return min(found)
    finally:
        torch.set_num_threads(threads)
