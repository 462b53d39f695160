"""All clients of a cohort as one batched model: for GPUs, and for models so small that a loop is all overhead."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedflux.data import Cohort
from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.base import Job, Key
from fedflux.engine.batched.inference import BatchedEngine, Kind
from fedflux.engine.batched.replay import ReplayEngine
from fedflux.engine.batched.stepper import Advance, Mapped, Resident, Sets, Stepper, mapped_advance, room_for, together
from fedflux.engine.kernels.fused import with_fused_layers
from fedflux.engine.loop import check_finite, has_batch_norm
from fedflux.engine.rules import Extras, LossRule, Rule
from fedflux.engine.schedule import schedules
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training

ON_CPU = 64
"""Clients stacked at once on a CPU: more gain nothing there."""
KEPT = 4
"""Steppers, and so CUDA graphs, kept for the rounds to come."""


@dataclass(frozen=True)
class _Outline:
    """What a stepper can be used again for."""

    rule: Rule
    evaluating: bool
    shape: tuple[int, int, int]
    sets: int
    extras: tuple[tuple[str, tuple[int, ...]], ...]


class StackedEngine(BatchedEngine):
    """Trains all clients in one step mapped over them, chunk by chunk where memory is short."""

    name = "stacked"

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] | None = (0.5, 0.5),
        compiled: bool = False,
        share: float = 1.0,
        task: Task = ONE_LABEL,
    ) -> None:
        super().__init__(model, device, precision, pixels, share, task)
        # torch.compile cannot map the gradients of fused layers, which gain more than compiling does
        self._compiled = compiled and self._model is model
        self._steppers: dict[_Outline, Stepper] = {}
        self._advances: dict[Rule, Advance] = {}

    def _prepared(self, model: nn.Module) -> nn.Module:
        """Fused on a GPU, where convolutions of many clients would be grouped ones."""
        return with_fused_layers(model) if torch.device(self.device).type == "cuda" else model

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        """Logits under these parameters, in a form that can be mapped and compiled."""
        with self._autocast():
            logits: Tensor = functional_call(self._model, params, (x,))
        return logits.to(self._dtype)

    def train(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None = None,
        extras: Sequence[Extras] | None = None,
    ) -> Stack:
        """Local training of all jobs side by side."""
        rule = rule or LossRule(training.optimiser)
        rate = training.extras(key.round)
        told: list[Extras] = [{**one, **rate} for one in extras] if extras else [rate] * len(jobs)
        self._model.train(not training.evaluating)
        kind: Kind = (type(rule), training.kind, training.evaluating, len(jobs[0].models), training.batch_size)
        size = self._chunk_size(kind, start, cohort, jobs, training, rule, told)
        # clients of like size together, so that few steps run half empty
        by_size = np.argsort([cohort.federation.size(job.client, training.split) for job in jobs], kind="stable")

        def order(size: int) -> NDArray[np.int64]:
            return by_size if size < len(jobs) else np.arange(len(jobs))

        def train(some: slice, size: int) -> Stack:
            chosen = order(size)[some].tolist()
            picked = [jobs[k] for k in chosen], [told[k] for k in chosen]
            return self._chunk(kind, start, cohort, picked[0], training, key, rule, picked[1])

        parts, self.chunk = self._memory.in_chunks(len(jobs), size, train, self._forget, "one client")
        if self.chunk < size:
            self._sizes[kind] = self.chunk
        back = torch.as_tensor(np.argsort(order(self.chunk)), device=self.device)
        trained = Stack(
            {name: torch.cat([part.tensors[name] for part in parts])[back].flatten(0, 1) for name in parts[0].tensors}
        )
        check_finite(trained, jobs, key)
        return trained

    def _chunk(
        self,
        kind: Kind,
        start: Stack,
        cohort: Cohort,
        jobs: list[Job],
        training: Training,
        key: Key,
        rule: Rule,
        extras: list[Extras],
    ) -> Stack:
        """Some jobs side by side; the result has axes (jobs, parameter sets, …)."""
        clients = tuple(job.client for job in jobs)
        sizes = [cohort.federation.size(client, training.split) for client in clients]
        sets = _sets(start, jobs)
        beside = together(extras, self.device)
        steps = room_for(max(-(-size // training.batch_size) for size in sizes))
        shape = (steps, len(jobs), training.batch_size)
        stepper = self._stepper(kind, rule, cohort, clients, training, shape, sets, beside)
        stepper.load(sets, beside)
        epochs = schedules(key, clients, sizes, training.epochs, training.batch_size, self.device)
        for number, epoch in enumerate(epochs):
            stepper.begin(epoch.positions, epoch.real, anew=number == 0 or not training.lasting)
            for whole in epoch.whole.tolist():
                stepper.step(whole)
        return Stack({name: torch.stack([one[name] for one in stepper.params], dim=1) for name in stepper.params[0]})

    def _stepper(
        self,
        kind: Kind,
        rule: Rule,
        cohort: Cohort,
        clients: tuple[int, ...],
        training: Training,
        shape: tuple[int, int, int],
        sets: Sets,
        extras: Extras,
    ) -> Stepper:
        """One that was made before for as many clients, turned to these, or a new one."""
        held = self.resident(cohort, clients, training.split)
        # one made for a tensor that has since been replaced would keep it alive
        self._steppers = {made: one for made, one in self._steppers.items() if one.data.x is held.x}
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in sorted(extras.items()))
        outline = _Outline(rule, training.evaluating, shape, len(sets), shapes)
        found = self._steppers.get(outline)
        if found is not None:
            found.data.turn_to(held)
            return found
        needed = self._costs.get(kind, 0) * shape[1]
        while self._steppers and (len(self._steppers) >= KEPT or not self._has_room(needed)):
            self._steppers.pop(next(iter(self._steppers)))
        own: Sets = tuple({name: tensor.clone() for name, tensor in one.items()} for one in sets)
        kept = {name: tensor.clone() for name, tensor in extras.items()}
        self._steppers[outline] = Stepper(self._advance(rule), self._fresh(rule), own, kept, Resident.of(held), shape)
        return self._steppers[outline]

    def _has_room(self, needed: float) -> bool:
        """Whether so much more fits beside the steppers that are kept."""
        return not self._memory.limited or needed <= self._memory.room(self._recorded())

    def _forget(self, everything: bool) -> None:
        self._steppers.clear()
        super()._forget(everything)

    def _recorded(self) -> int:
        return sum(stepper.recordings.nbytes for stepper in self._steppers.values())

    def _advance(self, rule: Rule) -> Advance:
        if rule not in self._advances:
            advance = mapped_advance(rule, self, self._images)
            self._advances[rule] = torch.compile(advance, dynamic=False) if self._compiled else advance
        return self._advances[rule]

    def _fresh(self, rule: Rule) -> Any:
        return vmap(lambda sets: rule.start(Mapped(self), sets))

    def _chunk_size(
        self,
        kind: Kind,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        rule: Rule,
        extras: list[Extras],
    ) -> int:
        """How many clients fit; on a GPU measured on one step of two of them."""
        if self._memory.limited and len(jobs) > 2 and kind not in self._sizes:
            pair = partial(self._pair_cost, start, cohort, jobs[:2], training, rule, extras[:2])
            self._sizes[kind] = self._fitting(kind, pair, clients=2)
        most = len(jobs) if self._memory.limited else min(len(jobs), ON_CPU)
        return min(most, self._sizes.get(kind, most))

    def _pair_cost(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        rule: Rule,
        extras: list[Extras],
    ) -> int:
        """Bytes that one step of two clients takes."""
        data = Resident.of(self.resident(cohort, [job.client for job in jobs], training.split))
        where = torch.zeros(2, training.batch_size, dtype=torch.int64, device=self.device)
        index = torch.zeros(2, dtype=torch.int64, device=self.device)
        advance = mapped_advance(rule, self, self._images)

        def step() -> None:
            sets = _sets(start, jobs)
            advance(sets, self._fresh(rule)(sets), together(extras, self.device), data, where, None, index)

        return self._memory.cost(step)


def _sets(start: Stack, jobs: Sequence[Job]) -> Sets:
    """The parameter sets that the jobs begin from, side by side."""
    return tuple(dict(start.take([job.models[s] for job in jobs]).tensors) for s in range(len(jobs[0].models)))


def stacked_engine(
    model: nn.Module,
    device: str = "cpu",
    precision: str = "fp32",
    pixels: tuple[float, float] | None = (0.5, 0.5),
    compiled: bool = False,
    share: float = 1.0,
    task: Task = ONE_LABEL,
) -> BatchedEngine:
    """The engine that stacks clients, or replays them side by side where the model may not be stacked.

    Layers that draw (dropout) draw for one client at a time, so models with them are trained as in the loop. `share` is
    the part of a GPU that this process may take.
    """
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules()):
        engine = BatchedEngine(model, device, precision, pixels, share, task)
        engine.name = "stacked"
        return engine
    if has_batch_norm(model):
        return ReplayEngine(model, device, precision, pixels, compiled, share, task)
    return StackedEngine(model, device, precision, pixels, compiled, share, task)
