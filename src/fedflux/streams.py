"""Random streams: every draw comes from (run seed, purpose, round, client), never from a global generator."""

from zlib import crc32

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator of one purpose; two calls with the same key draw the same numbers on every machine."""
    return np.random.default_rng(_sequence(seed, purpose, round, client))


def stream_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit integer seed of one purpose, for libraries that bring their own generator (torch, scikit-learn)."""
    return int(_sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: str, round: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, crc32(purpose.encode()), round, client])
