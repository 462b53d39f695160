import json
from dataclasses import asdict

import numpy as np
import torch

from fedflux.studies.bench.work import Work


def test_sizes() -> None:
    assert Work(clients=3, samples=20).sizes().tolist() == [20, 20, 20]
    uneven = Work(clients=50, samples=100, uneven=True).sizes()
    assert uneven.min() >= 50
    assert uneven.max() <= 150
    assert len(set(uneven.tolist())) > 10
    assert Work(clients=50, samples=100, epochs=3, uneven=True).samples_a_round() == 3 * uneven.sum()
    assert Work(clients=5, samples=1, uneven=True).sizes().min() == 1


def test_a_work_survives_json() -> None:
    work = Work(clients=3, lr=0.1, uneven=True)
    assert Work(**json.loads(json.dumps(asdict(work)))) == work


def test_engines_and_others_see_the_same_pixels() -> None:
    work = Work(clients=3, samples=20, uneven=True)
    federation = work.federation()
    for client, size in enumerate(work.sizes()):
        data = federation.materialise(client, "train")
        x, y = work.tensors(client)
        (mean,), (deviation,) = federation.dataset.scaling.mean, federation.dataset.scaling.deviation
        torch.testing.assert_close((data.x.float() / 255 - mean) / deviation, x)
        assert torch.equal(data.y, y)
        assert len(y) == size


def test_clients_differ_and_stay_the_same() -> None:
    work = Work(clients=2, samples=10)
    (first, _), (second, _) = work.client(0), work.client(1)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, Work(clients=5, samples=10).client(0)[0])
