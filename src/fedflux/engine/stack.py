"""Parameters of many models with one leading axis: a global model, cluster models and personal models are all rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Parameters = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Stack:
    """Named tensors (parameters and buffers), each of shape (models, …)."""

    tensors: Mapping[str, Tensor]

    @staticmethod
    def of(model: nn.Module) -> "Stack":
        """A stack of one: the module's current state."""
        return Stack({name: tensor.detach().clone()[None] for name, tensor in model.state_dict().items()})

    @staticmethod
    def join(rows: Sequence[Parameters]) -> "Stack":
        """One row per set of parameters, in order."""
        return Stack({name: torch.stack([row[name] for row in rows]) for name in rows[0]})

    @staticmethod
    def together(stacks: Sequence["Stack"]) -> "Stack":
        """The rows of several stacks, one stack after another."""
        return Stack({name: torch.cat([stack.tensors[name] for stack in stacks]) for name in stacks[0].tensors})

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def row(self, index: int) -> Parameters:
        """One model's tensors (views)."""
        return {name: tensor[index] for name, tensor in self.tensors.items()}

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> "Stack":
        """The chosen rows, repeats allowed."""
        index = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Stack({name: tensor[index.to(tensor.device)] for name, tensor in self.tensors.items()})

    def only(self, names: Collection[str]) -> "Stack":
        """These tensors of all models, and no others."""
        return Stack({name: tensor for name, tensor in self.tensors.items() if name in names})

    def put(self, indices: Sequence[int] | NDArray[np.int64], rows: "Stack") -> "Stack":
        """The same stack with the rows at `indices` exchanged for `rows`, in order."""
        index = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        for name, tensor in tensors.items():
            tensor[index.to(tensor.device)] = rows.tensors[name]
        return Stack(tensors)

    def average(self, weights: NDArray[np.float64]) -> "Stack":
        """Weighted averages, one row of `weights` (models out × models in) each; every row is normalised to sum to one.

        Sums run in row order, in float64, as one matrix product, so the result does not depend on the order in which
        clients answered. Integer buffers, such as BatchNorm's step count, are taken from the row of largest weight.
        """
        normal = weights / weights.sum(axis=1, keepdims=True)
        heaviest = torch.as_tensor(weights.argmax(axis=1))
        averaged = {}
        for name, tensor in self.tensors.items():
            if tensor.is_floating_point():
                matrix = torch.as_tensor(normal, dtype=torch.float64, device=tensor.device)
                flat = matrix @ tensor.reshape(len(tensor), -1).double()
                averaged[name] = flat.to(tensor.dtype).reshape(len(normal), *tensor.shape[1:])
            else:
                averaged[name] = tensor[heaviest.to(tensor.device)]
        return Stack(averaged)

    def model_bytes(self) -> int:
        """What sending one model costs: its parameters and buffers."""
        return sum(tensor[0].numel() * tensor.element_size() for tensor in self.tensors.values())

    def finite(self) -> NDArray[np.bool_]:
        """Which rows hold only finite numbers.

        A row whose sums are finite does, and sums are quick; only others, which may be large and no more, are looked at
        number by number.
        """
        sums = [tensor.reshape(len(tensor), -1).sum(dim=1).isfinite() for tensor in self.tensors.values()]
        ok = np.array(torch.stack(sums).all(dim=0).cpu().numpy(), dtype=np.bool_)
        for row in np.flatnonzero(~ok):
            ok[row] = all(bool(tensor[row].isfinite().all()) for tensor in self.tensors.values())
        return ok
