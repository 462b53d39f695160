"""LeNet-5, the paper's model for MNIST, FMNIST and CIFAR-10."""

from torch import nn

from fedflux.errors import FedfluxError
from fedflux.models.protocol import EncoderHead


class LeNet5(EncoderHead):
    """Two 5×5 convolutions with average pooling, then 120, 84 and the classes.

    The latent is the flattened convolution output (400 at 28×28), as in the authors' release; the paper's text names
    the last hidden layer.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise FedfluxError(f"lenet5 needs images (channels, height, width), not {input_shape}; try --model mlp")
        channels, height, width = input_shape
        side = [((length // 2) - 4) // 2 for length in (height, width)]
        if min(side) < 1:
            raise FedfluxError(f"lenet5 needs images of 12×12 or more, not {height}×{width}; try --model mlp")
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * side[0] * side[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )
