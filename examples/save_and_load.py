"""Train a federation, save it, and open it in another process: a client never seen is placed, and answered."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import fedflux as ff

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
x, y = (images[order] / 16).astype(np.float32), labels[order]
WARDS = {f"ward {k}": (x[k::7] if k % 2 else 1 - x[k::7], y[k::7]) for k in range(7)}  # even wards hold negatives


def train(folder: Path) -> None:
    """Six of the seven wards."""
    federation = ff.Federation.from_clients({name: WARDS[name] for name in list(WARDS)[:6]}, scale="none")
    result = ff.run(federation, model="mlp", rounds=15, lr=0.1, batch_size=16, out=folder)
    print(f"trained: {result.known:.1f} % right")


def use(folder: Path) -> None:
    """What the run says of the seventh ward, which has no labels."""
    run, (newcomer, truth) = ff.load(folder), WARDS["ward 6"]
    placement, answer = run.assign(newcomer), run.predict(newcomer).argmax(axis=1)
    print(f"ward 6 is in cluster {placement.cluster[0]}, p = {placement.confidence[0]:.2f}; the others: {run.clusters}")
    print(f"{100 * (answer == truth).mean():.1f} % of its answers are right")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/wards")
    if place.exists():
        use(place)
    else:
        train(place)
        subprocess.run([sys.executable, __file__, str(place)], check=True)  # nothing of this process is left there
