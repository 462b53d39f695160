"""Ten shops sort messages of token ids; half of them are written to in other words, and an embedding learns both."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedflux

KINDS = np.array(["question", "order", "complaint"])


def bag(classes: int) -> nn.Module:
    """The mean embedding of a message's tokens, and two layers; `encoder` names the part that gives latents."""
    words = nn.Sequential(nn.EmbeddingBag(200, 16), nn.Linear(16, 32), nn.ReLU())
    model = nn.Sequential(OrderedDict(words=words, head=nn.Linear(32, classes)))
    model.encoder = "words"
    return model


def shop(number: int) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """200 messages of twelve tokens, five of which say what kind it is, all in words of the shop's language."""
    rng = np.random.default_rng(number)
    kind, language = np.arange(200) % 3, 100 * (number % 2)
    telling = language + 20 * kind[:, None] + rng.integers(0, 20, (200, 5))
    others = language + rng.integers(0, 100, (200, 7))
    return np.concatenate([telling, others], axis=1), KINDS[kind]


federation = fedflux.Federation.from_clients({f"shop {k}": shop(k) for k in range(10)}, scale="none")
result = fedflux.run(federation, model=bag, rounds=12, lr=0.2, batch_size=16, progress=False)
print(result.clients.round(1))
print(f"{result['clusters_found']} languages, {result.known:.1f} % of {', '.join(result['class_names'])} told apart")
