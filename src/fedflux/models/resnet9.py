"""ResNet-9, the paper's model for CIFAR-100, CheXpert and Office-Home."""

from torch import Tensor, nn

from fedflux.errors import FedfluxError
from fedflux.models.protocol import EncoderHead


def _block(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    # no bias: BatchNorm takes the mean away again
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class _Residual(nn.Module):
    """Two blocks whose output is added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(_block(width, width), _block(width, width))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.pair(x)
        return added


class ResNet9(EncoderHead):
    """Conv-BN-ReLU blocks of 64 to 512 channels with two residual pairs; the latent feeds one linear layer."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise FedfluxError(f"resnet9 needs images (channels, height, width), not {input_shape}; try --model mlp")
        channels, height, width = input_shape
        if min(height, width) < 16:
            raise FedfluxError(f"resnet9 needs images of 16×16 or more, not {height}×{width}; try --model mlp")
        self.features = nn.Sequential(
            _block(channels, 64),
            _block(64, 128, pool=True),
            _Residual(128),
            _block(128, 256, pool=True),
            _block(256, 512, pool=True),
            _Residual(512),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(512 * (height // 16) * (width // 16), classes)
