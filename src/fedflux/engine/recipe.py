"""How a model is made: enough to make it again in another process, or anew from other random draws."""

from dataclasses import dataclass

from torch import nn

from fedflux.models import build_model


@dataclass(frozen=True)
class Recipe:
    """What `build_model` is told."""

    name: str
    image_shape: tuple[int, int, int]
    classes: int
    seed: int

    def build(self, index: int = 0) -> nn.Module:
        """The model with its initial weights; other indices draw other weights."""
        return build_model(self.name, self.image_shape, self.classes, self.seed, index)
