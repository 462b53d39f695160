"""A small multi-layer perceptron: the model for `digits` and for feature vectors."""

from math import prod

from torch import nn

from fedflux.models.protocol import EncoderHead


class MLP(EncoderHead):
    """Two hidden ReLU layers (128, 64); the latent is the second."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(prod(input_shape), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()
        )
        self.classifier = nn.Linear(64, classes)
