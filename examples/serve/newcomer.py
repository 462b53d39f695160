"""Two clients that nobody has seen, without labels: digits as training knew them, and digits lying on their side."""

import sys

import numpy as np
from sklearn.datasets import load_digits

from fedflux.client import Client


def main(url: str = "http://127.0.0.1:8080", key: str | None = None) -> None:
    """Describe, ask, download, predict."""
    digits = load_digits()
    x, y = np.rint(digits.images[:60] * (255 / 16)).astype(np.uint8)[:, None], digits.target[:60]
    with Client(url, key) as client:
        for name, own in (("upright", x), ("on their side", np.rot90(x, axes=(2, 3)))):
            answer = client.assign(own)
            right = (client.predict(own, answer).argmax(axis=1) == y).mean()
            novel = {True: "like no cluster", False: "not novel", None: "novelty unknown"}[answer.novel]
            models = ", ".join(f"{model} ({weight:.2f})" for model, weight in answer.weights.items())
            print(f"{name}: {answer.name}, {100 * answer.confidence:.0f} % sure, {novel}")
            print(f"  answered by {models}: {100 * right:.0f} % right")


if __name__ == "__main__":
    main(*sys.argv[1:])
