"""Twelve people wear wrist sensors in two ways; a 1-D CNN learns what they do, for every way of wearing them."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedflux


def cnn(classes: int) -> nn.Module:
    """Two convolutions over six channels of 128 steps; `encoder` names the part that gives latents."""
    convolutions = nn.Sequential(
        *(nn.Conv1d(6, 16, 9, stride=4), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=4), nn.ReLU(), nn.Flatten())
    )
    model = nn.Sequential(OrderedDict(convolutions=convolutions, head=nn.Linear(32 * 7, classes)))
    model.encoder = "convolutions"
    return model


def person(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """100 records (6, 128), faster and stronger the livelier; every second person wears the sensor upside down."""
    rng = np.random.default_rng(number)
    y = np.arange(100) % 3
    phase, pace = rng.uniform(0, 2 * np.pi, (100, 6, 1)), (y * rng.normal(1.2, 0.1))[:, None, None]
    swing = (0.2 + 0.5 * y)[:, None, None] * np.sin(pace * np.linspace(0, 12, 128) + phase)
    gravity = np.array([0, 0, 1, 0, 0, 0])[:, None] * (-1.0 if number % 2 else 1.0)
    return swing + gravity + rng.normal(0, 0.6, (100, 6, 128)), y


people = {f"person {k}": person(k) for k in range(12)}
federation = fedflux.Federation.from_clients(people, class_names=["rest", "walk", "run"])
result = fedflux.run(federation, model=cnn, rounds=15, lr=0.02, batch_size=8, progress=False)
print(result.clients.round(1))
print(f"{result['clusters_found']} ways of wearing it, accuracy {result.known:.1f} %. {result['verdict']}")
