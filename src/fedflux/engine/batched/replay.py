"""Clients each by itself, steps replayed as CUDA graphs: for models that are too big to stack, or may not be.

BatchNorm takes statistics of a client's own batch, which may not be filled up with other examples. Such models are
trained each by itself, a few at a time; what is saved is the host's work between the kernels, and the idle parts of the
GPU.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedflux.data import Cohort
from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.base import Job, Key
from fedflux.engine.batched.arena import OnDevice
from fedflux.engine.batched.inference import BatchedEngine, Kind
from fedflux.engine.batched.recording import Recordings
from fedflux.engine.batched.side_by_side import SideBySide
from fedflux.engine.batched.stepper import Resident, Sets, Stepper, room_for, single_advance, together
from fedflux.engine.loop import check_finite
from fedflux.engine.rules import Extras, LossRule, Rule
from fedflux.engine.schedule import epoch_orders
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training

LANES = 5
"""Clients trained side by side at most: more gain nothing."""


class ReplayEngine(BatchedEngine):
    """Clients' data stays on the device; a few steppers serve them in turn."""

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
        # another layout means other kernels, whose rounding a strict run does not want
        self._channels_last = torch.device(device).type == "cuda" and precision != "fp32-strict"
        self._made: tuple[tuple[object, ...], SideBySide] | None = None
        self._forward = torch.compile(self._plain, dynamic=False) if compiled else self._plain

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        """Logits under these parameters; compiled for training, where shapes stay the same."""
        if not self._model.training:
            return super().apply(params, x)
        with self._autocast():
            logits: Tensor = self._forward(params, x)
        return logits.to(self._dtype)

    def _plain(self, params: Parameters, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._model, params, (x,))
        return logits

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
        """Local training of all jobs, some side by side, those of like size together."""
        rule = rule or LossRule(training.optimiser)
        self._model.train(not training.evaluating)
        sizes = [cohort.federation.size(job.client, training.split) for job in jobs]
        room = room_for(-(-max(sizes) // training.batch_size))
        order = sorted(range(len(jobs)), key=lambda k: -sizes[k])
        rate = training.extras(key.round)
        sent: list[Extras] = [{**one, **rate} for one in extras] if extras else [rate] * len(jobs)
        beside = together(sent, self.device)
        kind: Kind = (type(rule), training.kind, training.evaluating, len(jobs[0].models), training.batch_size)
        lanes_most = self._lanes_that_fit(kind, start, cohort, jobs[0], training, rule, beside)
        width = -(-len(jobs) // -(-len(jobs) // lanes_most))

        def train(some: slice, width: int) -> dict[int, list[Parameters]]:
            chosen = order[some]
            clients = [jobs[k].client for k in chosen]
            held = self.resident(cohort, clients, training.split)
            sets: list[Sets] = [tuple(self._in_place(start.row(m)) for m in jobs[k].models) for k in chosen]
            told = [{name: tensor[k] for name, tensor in beside.items()} for k in chosen]
            lanes = self._lanes_for(rule, held, training, room, sets[0], told[0], width)
            for lane, stepper in enumerate(lanes.steppers[: len(chosen)]):
                stepper.data.turn_to(held.one(lane))
                stepper.load(sets[lane], told[lane])
            self._epochs(lanes, [sizes[k] for k in chosen], clients, training, key)
            return {
                k: [{name: tensor.clone() for name, tensor in one.items()} for one in stepper.params]
                for k, stepper in zip(chosen, lanes.steppers, strict=False)
            }

        parts, self.chunk = self._memory.in_chunks(len(jobs), width, train, self._forget, "one client")
        if self.chunk < width:
            self._sizes[kind] = self.chunk
        rows = {k: row for part in parts for k, row in part.items()}
        trained = Stack.join([row for k in range(len(jobs)) for row in rows[k]])
        check_finite(trained, jobs, key)
        return trained

    def _lanes_that_fit(
        self,
        kind: Kind,
        start: Stack,
        cohort: Cohort,
        job: Job,
        training: Training,
        rule: Rule,
        extras: Extras,
    ) -> int:
        """How many clients may be trained side by side; on a GPU measured on one step of one of them."""
        if self._memory.limited and kind not in self._sizes:
            self._made = None  # it would be replaced by lanes of this kind
            one = partial(self._lane_cost, start, cohort, job, training, rule, extras)
            self._sizes[kind] = self._fitting(kind, one, clients=1)
        return min(LANES, self._sizes.get(kind, LANES))

    def _lane_cost(self, start: Stack, cohort: Cohort, job: Job, training: Training, rule: Rule, extras: Extras) -> int:
        """Bytes that one step of a client takes."""
        data = Resident.of(self.resident(cohort, [job.client], training.split))
        where = torch.zeros(1, training.batch_size, dtype=torch.int64, device=self.device)
        index = torch.zeros(1, dtype=torch.int64, device=self.device)
        told = {name: tensor[0] for name, tensor in extras.items()}
        advance = single_advance(rule, self, self._pictures)

        def step() -> None:
            sets: Sets = tuple(self._in_place(start.row(m)) for m in job.models)
            advance(sets, rule.start(self, sets), told, data, where, None, index)

        return self._memory.cost(step)

    def _epochs(
        self, lanes: SideBySide, sizes: Sequence[int], clients: Sequence[int], training: Training, key: Key
    ) -> None:
        """Full batches, then each last one in its own size; BatchNorm leaves out one of a single example.

        SideBySide that hold more come first.
        """
        batch = training.batch_size
        full = [size // batch for size in sizes]
        rests = [size % batch for size in sizes]
        orders = [epoch_orders(key, client, n, training.epochs) for client, n in zip(clients, sizes, strict=True)]
        for number, epoch in enumerate(zip(*orders, strict=True)):
            anew = number == 0 or not training.lasting
            for stepper, order, size in zip(lanes.steppers, epoch, sizes, strict=False):
                filled = np.zeros(-(-size // batch) * batch, dtype=np.int64)
                filled[:size] = order
                stepper.begin(torch.from_numpy(filled.reshape(-1, 1, batch)).to(self.device), anew=anew)
            for step in range(full[0]):
                lanes.step(sum(n > step for n in full), batch)
            least = 2 if self._has_batch_norm else 1
            if len(set(rests)) == 1 and rests[0] >= least:
                lanes.step(len(sizes), rests[0])
                continue
            for stepper, rest in zip(lanes.steppers, rests, strict=False):
                if rest >= least:
                    stepper.step(True, rest)

    def _lanes_for(
        self,
        rule: Rule,
        held: OnDevice,
        training: Training,
        room: int,
        sets: Sets,
        extras: Extras,
        width: int,
    ) -> SideBySide:
        """Those made before, or new ones where something else has another shape or place."""
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in sorted(extras.items()))
        shape = (room, 1, training.batch_size)
        kind = (rule, training.evaluating, shape, len(sets), shapes, width)
        if self._made is None or self._made[0] != kind or self._made[1].steppers[0].data.x is not held.x:
            self._made = None  # first, so that its memory is free
            advance = single_advance(rule, self, self._pictures)
            recordings = Recordings(held.x.device)
            steppers = []
            for _ in range(width):
                own: Sets = tuple({name: tensor.clone() for name, tensor in one.items()} for one in sets)
                kept = {name: tensor.clone() for name, tensor in extras.items()}
                data = Resident.of(held.one(0))
                fresh = partial(rule.start, self)
                steppers.append(Stepper(advance, fresh, own, kept, data, shape, recordings))
            self._made = kind, SideBySide(steppers)
        return self._made[1]

    def _forget(self, everything: bool) -> None:
        self._made = None
        super()._forget(everything)

    def _recorded(self) -> int:
        return 0 if self._made is None else self._made[1].recordings.nbytes

    def _pictures(self, x: Tensor) -> Tensor:
        """Standardised pixels, laid out as convolutions on a GPU like them."""
        images = self._images(x)
        if not self._channels_last or images.ndim != 4:
            return images
        return images.contiguous(memory_format=torch.channels_last)

    def _in_place(self, params: Parameters) -> Parameters:
        """Copies, kernels in the same layout as the images."""
        return {
            name: tensor.clone(memory_format=torch.channels_last)
            if self._channels_last and tensor.ndim == 4
            else tensor.clone()
            for name, tensor in params.items()
        }
