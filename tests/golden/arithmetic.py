"""How this machine rounds: processors that can do the same add up in different orders, and last digits follow."""

from hashlib import sha256

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 5
SIZES = (1, 7, 16, 36, 64)
"""Rows of matrices: kernels are chosen by size."""


def arithmetic() -> str:
    """A digest of a few small computations of the kinds that runs are made of, by one thread, to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return _digest()
    finally:
        torch.set_num_threads(threads)


def _digest() -> str:
    digest = sha256()
    drawn = np.random.default_rng(0).standard_normal((64, 64))
    generator = torch.Generator().manual_seed(0)
    for rows in SIZES:
        digest.update((drawn[:rows] @ drawn).tobytes())
        digest.update((drawn[:rows].astype(np.float32) @ drawn.astype(np.float32)).tobytes())
    digest.update(np.linalg.svd(drawn, compute_uv=False).tobytes())
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    for step in range(STEPS):
        x = torch.randn(SIZES[step], 1, 8, 8, generator=generator)
        y = torch.randint(10, (SIZES[step],), generator=generator)
        for parameter, slope in zip(
            net.parameters(), torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters())), strict=True
        ):
            parameter.data -= 0.05 * slope
    for parameter in net.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]
