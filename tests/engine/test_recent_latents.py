"""Latents that are used again: only of the same images under the same parameters, and within a bound."""

import torch

from fedflux.engine.kernels import recent_latents as recent
from fedflux.engine.kernels.recent_latents import RecentLatents


def test_known_by_images_and_parameters() -> None:
    kept, x, params = RecentLatents(), torch.zeros(3, 2), {"w": torch.ones(2)}
    latents = [torch.rand(3, 4)]
    kept.put(params, x, latents)
    assert kept.get({"w": torch.ones(2)}, x) is latents  # an equal copy, as a worker receives it
    assert kept.get({"w": torch.zeros(2)}, x) is None
    assert kept.get(params, x.clone()) is None


def test_the_oldest_go_first() -> None:
    kept, params = RecentLatents(), {"w": torch.ones(2)}
    quarter = recent.RECENT_BYTES // 4 // 4 - 1  # the images, one number each, count too
    images = [torch.zeros(1) for _ in range(6)]
    for x in images:
        kept.put(params, x, [torch.empty(quarter)])
        kept.put(params, x, [torch.empty(quarter)])  # in the place of the first
    assert [kept.get(params, x) is not None for x in images] == [False, False, True, True, True, True]
    kept.put(params, images[0], [torch.empty(5 * quarter)])  # too large to be kept at all
    assert kept.get(params, images[0]) is None
