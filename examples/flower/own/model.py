"""A model of one's own: any module that shows its latents with `encode`."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """Two layers; the first one's output is what descriptors are made of."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def encode(self, x: Tensor) -> Tensor:
        """One latent vector per image."""
        latent: Tensor = self.body(x)
        return latent

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.encode(x))
        return logits


def make(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """What `model = "own.model:make"` names."""
    channels, height, width = input_shape
    return Classifier(channels * height * width, classes)
