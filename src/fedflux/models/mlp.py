"""A small multi-layer perceptron: the model for `digits` and for feature vectors."""

from math import prod

from torch import Tensor, nn


class MLP(nn.Module):
    """Two hidden ReLU layers (128, 64); the latent is the second."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(prod(image_shape), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()
        )
        self.classifier = nn.Linear(64, classes)

    def encode(self, x: Tensor) -> Tensor:
        """The latent of every image."""
        latent: Tensor = self.features(x)
        return latent

    def head(self, latent: Tensor) -> Tensor:
        """Logits from latents."""
        logits: Tensor = self.classifier(latent)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every image."""
        return self.head(self.encode(x))
