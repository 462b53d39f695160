"""Which engine suits a run, said in words.

What changes the last digits of a result (stacking clients) is decided by the model and the amount of work alone, so
that the same command gives the same numbers on a busy day too; a short calibration then decides whether processes are
worth starting, which give the bits of `loop`.
"""

import os
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import current_process
from time import perf_counter

import torch
from torch import nn

from fedflux.engine.kernels.chain import Chain
from fedflux.engine.loop import LoopEngine, has_batch_norm
from fedflux.engine.recipe import Recipe
from fedflux.engine.rules import Batch, LossRule
from fedflux.engine.training import Sgd
from fedflux.models.protocol import blank

SHORT = 4.0
"""Seconds of training below which nothing is worth starting up for."""
SLOW = 0.05
"""Seconds of a step of a few examples from which on a batch is not timed whole."""
STACKED_EXAMPLES = 500_000
"""Examples met in a run from which on small models of linear layers are stacked on a CPU, about twice as fast."""
STACKED_WEIGHTS = 1_000_000
"""Weights up to which a model of linear layers is small: beyond, one client's products fill a core by themselves."""
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
    own_rule: bool = False
    """Whether clients train by a rule of the method's own, not by the default one."""

    @property
    def total(self) -> float:
        """Examples met in all."""
        return self.clients * self.samples * self.epochs * self.rounds


@dataclass(frozen=True)
class Choice:
    """An engine's name, and why."""

    name: str
    words: str


def choose(model: nn.Module, recipe: Recipe, device: str, work: Work) -> Choice:
    """The engine that should be fastest for this work."""
    if torch.device(device).type == "cuda":
        return Choice("stacked", "stacked, the GPU's engine")
    if stacks_on_cpu(model, recipe.input_shape, work):
        return Choice("stacked", "stacked: many examples and a small model of linear layers")
    alone = _loop_step(model, recipe, work.batch_size)
    seconds = alone * work.total / work.batch_size
    if seconds < SHORT:
        return Choice("loop", f"loop: about {seconds:.1f} s of training")
    workers = min(cores(), work.clients)
    name = "processes" if workers > 1 else "loop"
    return Choice(name, f"{name} ({workers} of them): one client's step takes {1000 * alone:.1f} ms")


def stacks_on_cpu(model: nn.Module, input_shape: tuple[int, ...], work: Work) -> bool:
    """Whether stacking clients pays on a CPU: never for convolutions, which grouping makes slower, nor where a client's
    steps need no autograd (`engine/chain.py`).
    """
    chain = None if work.own_rule else Chain.of(model)
    if chain is not None and chain.takes((work.batch_size, *input_shape)):
        return False
    weights = sum(parameter.numel() for parameter in model.parameters())
    linear = sum(p.numel() for module in model.modules() if isinstance(module, nn.Linear) for p in module.parameters())
    return work.clients > 1 and work.total >= STACKED_EXAMPLES and weights == linear <= STACKED_WEIGHTS


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


def _loop_step(model: nn.Module, recipe: Recipe, batch_size: int) -> float:
    """Seconds of one step of one client; big models are timed on a few examples."""
    engine = LoopEngine(deepcopy(model), task=recipe.task)
    rule = LossRule(Sgd(0.0, 0.9))
    for size in (8, batch_size):
        size = min(size, batch_size)
        batch = _batch(recipe, size)
        seconds = _best_of(lambda: engine.step(batch, rule))  # noqa: B023
        if seconds > SLOW:
            return seconds * batch_size / size
    return seconds


def _batch(recipe: Recipe, size: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = blank(size, recipe.input_shape, recipe.integers)
    x = x if recipe.integers else torch.randn(x.shape, generator=generator)
    return Batch(x, recipe.task.targets(size, recipe.classes), torch.arange(size))


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
