"""The reference engine against plain PyTorch training, and weighted averaging against numpy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.descriptors.bounds import LatentRange
from fedflux.engine import DivergedError, Job, Key, LoopEngine, Predictor, Stack, Training, make_engine
from fedflux.errors import FedfluxError
from fedflux.models import MLP, build_model
from fedflux.streams import stream

TRAINING = Training(epochs=2, batch_size=16, lr=0.05, momentum=0.9)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(load("digits"), Partition("px", level=3, clients=4, data_fraction=0.3))


@pytest.fixture
def engine(federation: Federation) -> LoopEngine:
    return LoopEngine(build_model("mlp", federation.input_shape, 10, seed=1), pixels=federation.dataset.scaling.pixels)


def test_training_equals_plain_pytorch_sgd_with_momentum_reset_each_epoch(
    federation: Federation, engine: LoopEngine
) -> None:
    cohort = federation.cohort([2])
    trained = engine.train(engine.initial(), cohort, [Job(2)], TRAINING, Key(7, 3))
    model = MLP(federation.input_shape, 10)
    model.load_state_dict(engine.initial().row(0))
    data = cohort.data(2, "train")
    (mean,), (deviation,) = federation.dataset.scaling.mean, federation.dataset.scaling.deviation
    x = (data.x.float() / 255 - mean) / deviation
    order = stream(7, "batches", 3, 2)
    for _ in range(2):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for batch in torch.from_numpy(order.permutation(len(data))).split(16):
            optimiser.zero_grad()
            cross_entropy(model(x[batch]), data.y[batch]).backward()
            optimiser.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.row(0)[name], tensor, rtol=1e-5, atol=1e-6)


def test_start_stack_is_untouched_and_jobs_start_where_told(federation: Federation, engine: LoopEngine) -> None:
    start = engine.initial().take([0, 0])
    shifted = Stack(
        {name: t + torch.arange(2).reshape(-1, *[1] * (t.ndim - 1)) * 0.01 for name, t in start.tensors.items()}
    )
    before = {name: tensor.clone() for name, tensor in shifted.tensors.items()}
    cohort = federation.cohort([0, 1])
    both = engine.train(shifted, cohort, [Job(0, (1,)), Job(1, (0,))], TRAINING, Key(0, 1))
    for name, tensor in before.items():
        assert torch.equal(shifted.tensors[name], tensor)
    alone = engine.train(shifted.take([1]), cohort, [Job(0)], TRAINING, Key(0, 1))
    for name in before:
        assert torch.equal(both.tensors[name][0], alone.tensors[name][0])


def test_average_is_weighted_and_keeps_integers() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4, 2)).astype(np.float32)
    stack = Stack({"w": torch.tensor(values), "n": torch.tensor([5, 7, 9])})
    averaged = stack.average(np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 2.0]]))
    np.testing.assert_allclose(averaged.tensors["w"][0], (values[0] + 3 * values[1]) / 4, rtol=1e-6)
    assert torch.equal(averaged.tensors["w"][1], stack.tensors["w"][2])
    assert averaged.tensors["n"].tolist() == [7, 9]
    assert averaged.tensors["n"].dtype == torch.int64


def test_batch_norm_statistics_belong_to_the_client(federation: Federation) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8))
            self.out = nn.Linear(8, 10)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.flat(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.encode(x))

    engine = LoopEngine(Normed())
    cohort = federation.cohort([0, 1])
    size = len(cohort.data(0, "train"))
    training = Training(1, size - 1, 0.01, 0.9)  # leaves a batch of one, which must be skipped
    trained = engine.train(engine.initial(), cohort, [Job(0), Job(1)], training, Key(0, 1))
    steps = trained.tensors["flat.2.num_batches_tracked"].tolist()
    assert steps[0] == 1
    assert engine.initial().tensors["flat.2.num_batches_tracked"].tolist() == [0]
    assert not torch.equal(trained.tensors["flat.2.running_mean"][0], trained.tensors["flat.2.running_mean"][1])


def test_mixture_averages_probabilities_not_logits(federation: Federation, engine: LoopEngine) -> None:
    models = [build_model("mlp", federation.input_shape, 10, seed=s) for s in (1, 2)]
    stack = Stack.join([dict(m.state_dict()) for m in models])
    features = federation.cohort([0]).features("test")
    mixed = engine.predict(Predictor(stack, np.array([[0.25, 0.75]])), features)[0]
    (mean,), (deviation,) = federation.dataset.scaling.mean, federation.dataset.scaling.deviation
    x = (features[0].x.float() / 255 - mean) / deviation
    with torch.no_grad():
        expected = 0.25 * models[0](x).softmax(1) + 0.75 * models[1](x).softmax(1)
    np.testing.assert_allclose(mixed, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_losses_are_in_dataset_order(federation: Federation, engine: LoopEngine) -> None:
    cohort = federation.cohort([1])
    (losses,) = engine.losses(engine.initial(), cohort, "validation")
    data = cohort.data(1, "validation")
    probabilities = engine.predict(Predictor.shared(engine.initial(), np.ones(1), 1), [data.features()])[0]
    expected = -np.log(probabilities[np.arange(len(data)), data.y.numpy()])
    np.testing.assert_allclose(losses[0], expected, rtol=1e-3, atol=1e-5)


def test_an_empty_split_scores_nan(federation: Federation, engine: LoopEngine) -> None:
    one = partition(load("digits"), Partition("px", level=3, clients=4, data_fraction=0.005))
    scores = engine.evaluate([Predictor.shared(engine.initial(), np.ones(1), 4)], one.cohort(range(4)), "validation")[0]
    assert np.isnan(scores).all()
    assert [a.shape for a in engine.losses(engine.initial(), one.cohort([0]), "validation")] == [(1, 0)]
    everyone = Predictor.shared(engine.initial(), np.ones(1), 1)
    assert engine.predict(everyone, one.cohort([0]).features("validation"))[0].shape == (0, 10)


def test_reduce_streams_latents(federation: Federation, engine: LoopEngine) -> None:
    cohort = federation.cohort([0])
    ((low, high),) = engine.reduce(engine.initial(), [cohort.data(0, "train")], LatentRange())
    assert low.shape == (64,)
    assert torch.all(low <= high)
    assert torch.all(low >= 0)  # ReLU


def test_divergence_names_client_and_round(federation: Federation, engine: LoopEngine) -> None:
    with pytest.raises(DivergedError, match="client 3 diverged in round 5"):
        engine.train(engine.initial(), federation.cohort([3]), [Job(3)], Training(1, 16, 1e30, 0.9), Key(0, 5))


def test_engine_and_device_names_are_checked(federation: Federation) -> None:
    with pytest.raises(FedfluxError, match="unknown engine"):
        make_engine("warp", "mlp", federation, 1)
    with pytest.raises(FedfluxError, match="unknown device"):
        make_engine("auto", "mlp", federation, 1, device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(FedfluxError, match="0 CUDA devices"):
            make_engine("auto", "mlp", federation, 1, device="cuda")
