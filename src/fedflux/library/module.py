"""What a client answers with as a plain `nn.Module`: raw inputs in, one row of scores out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedflux.data.scaling import Scaling


class ClientModel(nn.Module):
    """One model, or several whose probabilities are mixed, behind the scaling that the run was trained with.

    It takes inputs as clients have them. The largest score is the answer, and the softmax of the scores are the
    probabilities p = Σ_m w_m softmax(f_m(x)): a single model gives its own logits, a mixture log p. Of several labels
    the sigmoid of each score is the label's probability, p = Σ_m w_m sigmoid(f_m(x)): a mixture gives log p/(1 − p).
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        weights: Sequence[float],
        scaling: Scaling,
        channels: int | None,
        several_labels: bool = False,
    ) -> None:
        super().__init__()
        self.several_labels = several_labels
        self.models = nn.ModuleList(models)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))
        self.kind = scaling.kind
        self.channels = channels
        if scaling.kind != "none":
            for name, values in (("mean", scaling.mean), ("deviation", scaling.deviation)):
                self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs as the models see them."""
        if self.channels is not None and x.shape[1] != self.channels:
            x = x.repeat_interleave(self.channels, dim=1)
        if self.kind == "none":
            return x if not x.is_floating_point() else x.float()
        if self.kind == "pixels":
            pixels = x.float() / 255 if x.dtype == torch.uint8 else x.float()
            return (pixels - self.get_buffer("mean").float()) / self.get_buffer("deviation").float()
        shape = (-1, *[1] * (x.ndim - 2))
        mean, deviation = (self.get_buffer(name).reshape(shape) for name in ("mean", "deviation"))
        return ((x.double() - mean) / deviation).float()

    def forward(self, x: Tensor) -> Tensor:
        """One row of scores an input."""
        x = self.scaled(x)
        if len(self.models) == 1:
            logits: Tensor = self.models[0](x)
            return logits
        weights = self.get_buffer("weights").float()
        scores = [model(x) for model in self.models]
        answers = torch.stack([one.sigmoid() if self.several_labels else one.softmax(dim=1) for one in scores])
        mixed: Tensor = (weights[:, None, None] * answers).sum(dim=0)
        least = torch.finfo(mixed.dtype).tiny
        if self.several_labels:
            without: Tensor = (weights[:, None, None] * torch.stack([(-one).sigmoid() for one in scores])).sum(dim=0)
            return mixed.clamp_min(least).log() - without.clamp_min(least).log()
        return mixed.clamp_min(least).log()
