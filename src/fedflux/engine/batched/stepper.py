"""Steps that stay on the device: everything a step needs lies in tensors that keep their place (parameters, memory, the
epoch's positions, the data), and a counter there says which step it is, so the host only asks for the next one. On a
GPU a step is recorded once as a CUDA graph and replayed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from fedflux.engine.batched.arena import OnDevice
from fedflux.engine.batched.recording import Recordings, copy_into
from fedflux.engine.rules import Batch, Extras, Loss, Operations, Rule
from fedflux.engine.stack import Parameters

SELDOM = 4
"""How often a short batch of one size runs kernel by kernel before it is worth a recording."""
Sets = tuple[Parameters, ...]
"""One or more parameter sets."""


@dataclass(frozen=True, eq=False)
class Resident:
    """What K clients train on, on the device, each example once."""

    x: Tensor
    y: Tensor
    offsets: Tensor
    """(K,): where each client begins."""
    stored: Tensor
    """(K,): how many examples of each lie there; further positions are copies, which begin again at the first."""

    def rows(self, where: Tensor) -> Tensor:
        """(K, B): where the examples at these positions of each client lie."""
        return where % self.stored[:, None] + self.offsets[:, None]

    @staticmethod
    def of(held: OnDevice) -> "Resident":
        """These clients first; others may follow at the same place."""
        room = torch.zeros(2, len(held.sizes), dtype=torch.int64, device=held.x.device)
        made = Resident(held.x, held.y, room[0], room[1])
        made.turn_to(held)
        return made

    def turn_to(self, held: OnDevice) -> None:
        """Take other clients of the same tensor from here on."""
        self.offsets.copy_(torch.from_numpy(held.begins))
        self.stored.copy_(torch.from_numpy(held.sizes.clip(1)))


class Advance(Protocol):
    """A pure step of K clients: what comes after (parameters, memory); `real` is None where all batches are full."""

    def __call__(
        self,
        params: Sets,
        memory: Any,
        extras: Extras,
        data: Resident,
        where: Tensor,
        real: Tensor | None,
        index: Tensor,
    ) -> tuple[Sets, Any]:
        """`where`: (K, B) positions in what each client trains on."""


@dataclass(frozen=True)
class Mapped:
    """Operations inside a map over clients: gradients by transformation, not by a tape."""

    inner: Operations

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        """Logits under these parameters."""
        return self.inner.apply(params, x)

    def example_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """What each example loses."""
        return self.inner.example_losses(logits, y)

    def trained(self, params: Parameters) -> Parameters:
        """The tensors that training changes."""
        return self.inner.trained(params)

    def gradient(self, loss: Loss, at: Parameters) -> Parameters:
        """d loss / d at."""
        found: Parameters = grad(loss)(at)
        return found

    def statistics(self, params: Parameters, x: Tensor) -> Parameters:
        """Of BatchNorm layers: there are none in models that are mapped."""
        return self.inner.statistics(params, x)

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        """left + factor · right."""
        return {name: torch.add(tensor, right[name], alpha=factor) for name, tensor in left.items()}


def mapped_advance(rule: Rule, operations: Operations, images: Callable[[Tensor], Tensor]) -> Advance:
    """The rule mapped over clients; those without an example in a step keep their parameters and memory."""
    inside = Mapped(operations)

    def one(
        params: Sets,
        memory: Any,
        x: Tensor,
        y: Tensor,
        where: Tensor,
        extras: Extras,
        index: Tensor,
        real: Tensor | None,
    ) -> tuple[Sets, Any]:
        moved, after = rule.step(inside, params, memory, Batch(x, y, where, real), extras, index)
        if real is None:
            return moved, after
        active = real.any()
        chosen: tuple[Sets, Any] = tree_map(
            lambda new, old: torch.where(active, new, old), (moved, after), (params, memory)
        )
        return chosen

    def advance(
        params: Sets, memory: Any, extras: Extras, data: Resident, where: Tensor, real: Tensor | None, index: Tensor
    ) -> tuple[Sets, Any]:
        rows = data.rows(where).reshape(-1)
        x = images(data.x.index_select(0, rows))
        x = x.reshape(*where.shape, *x.shape[1:])
        y = data.y.index_select(0, rows).reshape(*where.shape, *data.y.shape[1:])
        dims = (0, 0, 0, 0, 0, 0, 0, None if real is None else 0)
        after: tuple[Sets, Any] = vmap(one, in_dims=dims)(params, memory, x, y, where, extras, index, real)
        return after

    return advance


def single_advance(rule: Rule, operations: Operations, images: Callable[[Tensor], Tensor]) -> Advance:
    """One client alone, by ordinary backpropagation; K is 1 and there is nothing to fill up."""

    def advance(
        params: Sets, memory: Any, extras: Extras, data: Resident, where: Tensor, real: Tensor | None, index: Tensor
    ) -> tuple[Sets, Any]:
        rows = data.rows(where)[0]
        batch = Batch(images(data.x.index_select(0, rows)), data.y.index_select(0, rows), where[0])
        return rule.step(operations, params, memory, batch, extras, index[0])

    return advance


class Stepper:
    """Parameters, memory and an epoch's batches in place, and the step that advances them."""

    def __init__(
        self,
        advance: Advance,
        fresh: Callable[[Sets], Any],
        params: Sets,
        extras: Extras,
        data: Resident,
        shape: tuple[int, int, int],
        recordings: Recordings | None = None,
    ) -> None:
        self._advance, self._fresh = advance, fresh
        self.params, self.extras, self.data = params, dict(extras), data
        device = data.x.device
        self.positions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.real = torch.ones(shape, dtype=torch.bool, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.index = torch.zeros(shape[1], dtype=torch.int64, device=device)
        self.memory = tree_map(_own, fresh(params))
        self._graphs: dict[tuple[bool, int], torch.cuda.CUDAGraph] = {}
        self._seen: dict[int, int] = {}
        self.recordings = recordings or Recordings(device)
        """Whose memory the graphs take; steppers that take turns share one."""

    def load(self, params: Sets, extras: Extras) -> None:
        """Begin a round from these parameters."""
        copy_into(self.params, params)
        copy_into(self.extras, dict(extras))
        self.index.zero_()

    def begin(self, positions: Tensor, real: Tensor | None = None, anew: bool = True) -> None:
        """Begin an epoch: its batches, and memory as at the start, unless it lasts."""
        self.positions[: len(positions)].copy_(positions)
        if real is not None:
            self.real[: len(real)].copy_(real)
        self.counter.zero_()
        if anew:
            copy_into(self.memory, self._fresh(self.params))

    def step(self, whole: bool, size: int | None = None) -> None:
        """One step; `whole`: no batch needs a mask; `size`: only so many of the batch's examples."""
        size = self.positions.shape[2] if size is None else size
        device = self.data.x.device
        if device.type != "cuda":
            self.run(whole, size)
            return
        if (whole, size) not in self._graphs:
            self._seen[size] = self._seen.get(size, 0) + 1
            if size < self.positions.shape[2] and self._seen[size] <= SELDOM:
                self.run(whole, size)
                return
            self._graphs[whole, size] = self.recordings.record(lambda: self.run(whole, size), self.state)
        self._graphs[whole, size].replay()

    @property
    def state(self) -> Any:
        """All that a step changes."""
        return self.params, self.memory, self.counter, self.index

    def run(self, whole: bool, size: int) -> None:
        """One step, kernel by kernel."""
        where = self.positions.index_select(0, self.counter)[0][:, :size]
        real = None if whole else self.real.index_select(0, self.counter)[0]
        after = self._advance(self.params, self.memory, self.extras, self.data, where, real, self.index)
        copy_into((self.params, self.memory), after)
        self.counter += 1
        self.index += 1 if real is None else real.any(dim=1)


def room_for(steps: int) -> int:
    """Steps that a stepper sets aside: the next power of two, so that cohorts of unlike sizes can share one."""
    return 1 << max(steps - 1, 0).bit_length()


def together(extras: Sequence[Extras], device: str) -> dict[str, Tensor]:
    """The clients' extras side by side; shorter ones, such as sample weights, are filled up with zeros."""
    beside = {}
    for name in extras[0]:
        tensors = [one[name] for one in extras]
        longest = max((len(t) for t in tensors if t.ndim), default=0)
        filled = [
            torch.cat([t, t.new_zeros(longest - len(t), *t.shape[1:])]) if t.ndim and len(t) < longest else t
            for t in tensors
        ]
        beside[name] = torch.stack(filled).to(device)
    return beside


def _own(tensor: Tensor) -> Tensor:
    """A tensor whose elements lie apart: what a map gives alike to all clients is one element shown many times."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor.clone()
