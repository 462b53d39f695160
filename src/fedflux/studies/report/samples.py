"""Sample images: small PNG files in the page, each distinct image once however many runs show it."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_GROUPS = 12
"""Clusters of a run that show images."""
GENEROSITY = ((3, 10), (2, 10), (1, 10), (1, 5), (1, 3))
"""Clients of each cluster, and images of each client: the first that fits the budget."""
BUDGET = 5_000_000
"""Characters of image data in a page."""


class Album:
    """The distinct images of a page, as base64 text in the order in which they were first asked for."""

    def __init__(self, budget: int) -> None:
        self.refused = 0
        self.images: list[str] = []
        self._known: dict[bytes, int] = {}
        self._left = budget

    def add(self, image: NDArray[np.uint8]) -> int | None:
        """The image's place in the album, None when there is no room left for one more."""
        key = sha256(repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()).digest()
        if key not in self._known:
            text = png(image)
            if len(text) > self._left:
                self.refused += 1
                return None
            self._left -= len(text)
            self._known[key] = len(self.images)
            self.images.append(text)
        return self._known[key]


def png(image: NDArray[np.uint8]) -> str:
    """A PNG file in base64; one channel is grey, three are colours."""
    from PIL import Image

    buffer = BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", optimize=True)
    return b64encode(buffer.getvalue()).decode()


def all_samples(
    runs: Sequence[tuple[Mapping[str, NDArray[Any]] | None, Sequence[int]]], budget: int = BUDGET
) -> tuple[list[dict[str, Any] | None], list[str]]:
    """The samples of every run (its arrays, the cluster of every client) and the images they point to.

    All runs show equally many, as many as fit the budget.
    """
    for clients, images in GENEROSITY:
        album = Album(budget)
        shown = [run_samples(arrays, group_of, album, clients, images) for arrays, group_of in runs]
        if not album.refused:
            break
    return shown, album.images


def run_samples(
    arrays: Mapping[str, NDArray[Any]] | None, group_of: Sequence[int], album: Album, per_group: int, per_client: int
) -> dict[str, Any] | None:
    """Images by cluster and client, a few of each; nothing where the run kept none."""
    if arrays is None or not len(arrays["client"]):
        return None
    groups: dict[int, dict[int, list[list[int]]]] = {}
    left_out = 0
    owners = [int(client) for client in arrays["client"]]
    shown = sorted({group_of[client] for client in owners})
    for row in np.lexsort((arrays["label"], arrays["client"])):
        client = owners[row]
        clients = groups.setdefault(group_of[client], {})
        if group_of[client] not in shown[:MOST_GROUPS] or (client not in clients and len(clients) >= per_group):
            continue
        images = clients.setdefault(client, [])
        if len(images) >= per_client:
            continue
        place = album.add(arrays["image"][row])
        if place is None:
            left_out += 1
        else:
            images.append([int(arrays["label"][row]), place])
    return {
        "groups": [
            {"cluster": group, "clients": [[client, images] for client, images in groups[group].items() if images]}
            for group in shown[:MOST_GROUPS]
            if any(groups[group].values())
        ],
        "per_client": per_client,
        "groups_left_out": max(0, len(shown) - MOST_GROUPS),
        "images_left_out": left_out,
    }
