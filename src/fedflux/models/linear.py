"""Logistic regression: for tables of few rows."""

from math import prod

from torch import nn

from fedflux.models.protocol import EncoderHead


class LogisticRegression(EncoderHead):
    """One layer; its latents are the features themselves."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.classifier = nn.Linear(prod(input_shape), classes)
