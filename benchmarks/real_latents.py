"""Reduced latents of real photographs, for `benchmarks.variation --latents`: a ResNet-9 trained on Office-Home.

    python -m benchmarks.real_latents --data DATA/officehome20_64 --out latents.npz [--epochs 12] [--device cuda]

Four fifths of the pictures of all domains train one model, with flips and shifts of up to four pixels; the accuracy on
the rest is printed. The file has `reduced`, the latents of all pictures under the paper's projector, and `y`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from benchmarks.real_data import officehome
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.projector import fit_projector
from fedflux.files import write_npz
from fedflux.models import build_model

BATCH, RATE, DECAY, REACH = 64, 3e-3, 0.05, 4


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each picture flipped or not, all of a batch moved by a few pixels."""
    flip = torch.rand(len(x), generator=generator) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    down, right = torch.randint(-REACH, REACH + 1, (2,), generator=generator).tolist()
    return x.roll((down, right), (2, 3))


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, device: str, seed: int) -> None:
    """AdamW with one cycle of the rate, in bf16."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps)
    with tqdm(total=steps) as bar:
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH)[: len(x) // BATCH]:
                batch = augmented(x[rows], generator).to(device)
                with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
                    loss = cross_entropy(model(batch), y[rows].to(device), label_smoothing=0.1)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                schedule.step()
                bar.update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=50)
    told = parser.parse_args()
    arrays = officehome(told.data, 4, told.seed)
    pixels = torch.from_numpy(np.ascontiguousarray(arrays["x"])).permute(0, 3, 1, 2)
    x, y = (pixels.float() / 255 - 0.5) / 0.5, torch.from_numpy(arrays["y"].astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(told.seed).permutation(len(y)))
    cut = len(y) // 5
    model = build_model("resnet9", tuple(x.shape[1:]), int(y.max()) + 1, told.seed).to(told.device)
    train(model, x[order[cut:]], y[order[cut:]], told.epochs, told.device, told.seed)
    model.eval()
    with torch.no_grad():
        parts = [part.to(told.device) for part in torch.split(x, 200)]
        pairs = [(model.encode(part), model(part)) for part in parts]  # type: ignore[operator]
    latents, logits = (torch.cat([pair[k].float().cpu() for pair in pairs]) for k in (0, 1))
    right = (logits.argmax(dim=1) == y)[order[:cut]].double().mean()
    projector = fit_projector(Bounds(latents.amin(dim=0).numpy(), latents.amax(dim=0).numpy()))
    write_npz(told.out, {"reduced": projector.project(latents).numpy(), "y": y.numpy()})
    print(f"{told.out}: {len(y)} pictures, {100 * float(right):.1f} % of the test pictures right")


if __name__ == "__main__":
    main()
