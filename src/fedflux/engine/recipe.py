"""How a model is made: enough to make it again in another process, or anew from other random draws."""

from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.models import OwnModel, build_model
from fedflux.models.depth import head_names


@dataclass(frozen=True)
class Recipe:
    """What `build_model` is told."""

    name: str | OwnModel
    input_shape: tuple[int, ...]
    classes: int
    seed: int
    integers: bool = False
    """Whether inputs are integers, such as token ids."""
    task: Task = ONE_LABEL
    """What is learned of a record."""

    def build(self, index: int = 0) -> nn.Module:
        """The model with its initial weights; other indices draw other weights."""
        return build_model(self.name, self.input_shape, self.classes, self.seed, index, self.integers)

    @cached_property
    def head_names(self) -> frozenset[str]:
        """The tensors of the layer that a forward pass ends with."""
        return head_names(self.build(), self.input_shape, self.integers)
