"""Client by client, each step a replayed CUDA graph: for models that are too big to stack, or may not be.

BatchNorm takes statistics of a client's own batch, which may not be filled up with other examples. Such models are
trained one client after another; what is saved is the host's work between the kernels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedflux.data import Cohort
from fedflux.engine.arena import OnDevice
from fedflux.engine.base import Job, Key, Training
from fedflux.engine.inference import BatchedEngine
from fedflux.engine.loop import check_finite
from fedflux.engine.rules import Extras, LossRule, Rule, Sgd
from fedflux.engine.schedule import epoch_orders
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.stepper import Resident, Sets, Stepper, room_for, single_advance


class ReplayEngine(BatchedEngine):
    """Clients' data stays on the device; one stepper serves them in turn."""

    name = "stacked"

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] = (0.5, 0.5),
        compiled: bool = False,
    ) -> None:
        super().__init__(model, device, precision, pixels)
        # another layout means other kernels, whose rounding a strict run does not want
        self._channels_last = torch.device(device).type == "cuda" and precision != "fp32-strict"
        self._made: tuple[tuple[object, ...], Stepper] | None = None
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
        """Local training of every job in order."""
        rule = rule or LossRule(Sgd(training.lr, training.momentum))
        self._model.train(not training.evaluating)
        sizes = {job.client: cohort.federation.size(job.client, training.split) for job in jobs}
        steps = room_for(max(-(-size // training.batch_size) for size in sizes.values()))
        rows: list[Parameters] = []
        for position, job in enumerate(jobs):
            sets: Sets = tuple(self._in_place(start.row(model)) for model in job.models)
            told = dict(extras[position]) if extras else {}
            held = self.resident(cohort, [job.client], training.split)
            shape = (steps, 1, training.batch_size)
            stepper = self._stepper(rule, held, training.evaluating, shape, sets, told)
            stepper.load(sets, told)
            self._epochs(stepper, sizes[job.client], job.client, training, key)
            rows += [{name: tensor.clone() for name, tensor in one.items()} for one in stepper.params]
        trained = Stack.join(rows)
        check_finite(trained, jobs, key)
        return trained

    def _epochs(self, stepper: Stepper, size: int, client: int, training: Training, key: Key) -> None:
        """Full batches, then the last one in its own size; BatchNorm leaves out one of a single example."""
        full, rest = divmod(size, training.batch_size)
        for order in epoch_orders(key, client, size, training.epochs):
            filled = np.zeros((full + (rest > 0)) * training.batch_size, dtype=np.int64)
            filled[:size] = order
            stepper.begin(torch.from_numpy(filled.reshape(-1, 1, training.batch_size)).to(self.device))
            for _ in range(full):
                stepper.step(True)
            if rest > (1 if self._has_batch_norm else 0):
                stepper.step(True, rest)

    def _stepper(
        self,
        rule: Rule,
        held: OnDevice,
        evaluating: bool,
        shape: tuple[int, int, int],
        sets: Sets,
        extras: Extras,
    ) -> Stepper:
        """The one made before, turned to this client, or a new one where something else has another shape or place."""
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in sorted(extras.items()))
        kind = (rule, evaluating, shape, len(sets), shapes)
        if self._made is None or self._made[0] != kind or self._made[1].data.x is not held.x:
            own: Sets = tuple({name: tensor.clone() for name, tensor in one.items()} for one in sets)
            kept = {name: tensor.to(self.device).clone() for name, tensor in extras.items()}
            advance = single_advance(rule, self, self._pictures)
            data = Resident.of(held)
            self._made = kind, Stepper(advance, lambda sets: rule.start(self, sets), own, kept, data, shape)
        self._made[1].data.turn_to(held)
        return self._made[1]

    def _pictures(self, x: Tensor) -> Tensor:
        """Standardised pixels, laid out as convolutions on a GPU like them."""
        images = self._images(x)
        return images.contiguous(memory_format=torch.channels_last) if self._channels_last else images

    def _in_place(self, params: Parameters) -> Parameters:
        """Copies, kernels in the same layout as the images."""
        return {
            name: tensor.clone(memory_format=torch.channels_last)
            if self._channels_last and tensor.ndim == 4
            else tensor.clone()
            for name, tensor in params.items()
        }
