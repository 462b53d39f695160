"""Operations travel as names, revisions, arrays and plain values, and are refused in words where they do not fit."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import fedflux.algorithms  # noqa: F401, registers what methods ask
from fedflux.algorithms.baselines import ditto
from fedflux.algorithms.baselines.apfl import Mixing
from fedflux.algorithms.baselines.atp import BatchAdaptation, RateRule
from fedflux.algorithms.baselines.fedrep import SomeLayers
from fedflux.algorithms.baselines.haccs import AskHistograms
from fedflux.algorithms.baselines.pacfl import AskSubspace
from fedflux.algorithms.baselines.paper import Pulled
from fedflux.algorithms.baselines.pfedme import Envelope
from fedflux.algorithms.shared.membership import AskMeanLosses
from fedflux.algorithms.shared.mixture import AskWeights, Evidence, Responsibilities, WeightedLoss
from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.clustering.placement.offer import Offer
from fedflux.clustering.placement.posterior import Temperature
from fedflux.clustering.placement.queries import AskPlacement, AskTries
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.inputs import AskOctaves, AskSpread, AskSums
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.queries import AskBounds, AskDescriptor, AskLabels, AskScatter, AskUnlabelled
from fedflux.engine.rules import LossRule
from fedflux.engine.training import Adam, Sgd
from fedflux.errors import FedfluxError
from fedflux.operations import _KINDS, Packed, name_of, operation, pack, revision_of, unpack
from fedflux.savable import take_apart

SGD = Sgd(0.05, 0.9, clip=1.5)
BOX = Bounds(np.zeros(4, dtype=np.float32), np.arange(1, 5, dtype=np.float32))
PROJECTOR = Projector(np.arange(4.0), np.eye(4)[:2])
DESCRIPTOR = AskDescriptor(3, 2, 50, BOX, PROJECTOR, privacy=Privacy("paper", 2.0))
MARGINALS = Evidence(2, np.log(np.array([[0.25, 0.75], [0.5, 0.5]])), "validation")
MIXTURES = ClassMixtures(
    np.zeros((3, 2), dtype=np.float32),
    np.stack([np.eye(2, dtype=np.float32)] * 3),
    np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    np.ones((2, 3), dtype=np.float32),
    np.full((2, 3), 1 / 3, dtype=np.float32),
    np.ones((2, 3, 3), dtype=np.float16),
    np.array([0.0, 0.1], dtype=np.float32),
    np.array([0.2, 0.0], dtype=np.float32),
    np.ones(3, dtype=np.float32),
)
OPERATIONS = [
    LossRule(SGD),
    WeightedLoss(Adam(0.001, weight_decay=0.1, decoupled=True)),
    Mixing(SGD, adaptive=True, output_mixing=False),
    Envelope(SGD, 15.0, 5, 0.03, 0.001),
    RateRule(0.1),
    Pulled(SGD, 1.0),
    ditto.Pulled(SGD, 0.5),
    SomeLayers(SGD, ("classifier.bias", "classifier.weight")),
    BatchAdaptation({"norm.weight": torch.tensor(0.5), "out.bias": torch.arange(3.0)}, 16),
    AskMeanLosses(4),
    AskSubspace(64, 3, "test"),
    AskHistograms("py", 10, seed=7, epsilon=0.5),
    AskWeights(Evidence(3)),
    Responsibilities(MARGINALS, labels=2),
    AskSpread(64),
    AskOctaves(64, Privacy("gaussian", 2.0, scaling=True)),
    AskSums(3, Privacy("gaussian", 2.0, scaling=True), np.array([1.0, 64.0, 0.5])),
    AskBounds(64),
    AskLabels(14),
    AskScatter(BOX, 2, 50, 3, (2, 0, 1)),
    DESCRIPTOR,
    AskUnlabelled(replace(DESCRIPTOR, given=None, privacy=None), "validation"),
    AskPlacement(DESCRIPTOR, Offer(MIXTURES, np.full(2, 0.5, dtype=np.float32), Temperature(2.0, 0.01))),
    AskTries(DESCRIPTOR, MIXTURES, seed=3),
]


def sent(thing: Any) -> Any:
    """What the receiver gets: the outline as text, arrays in memory of its own that nobody may write to."""
    packed = pack(thing)
    arrays = {name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in packed.arrays.items()}
    return unpack(Packed(packed.name, packed.revision, arrays, json.loads(json.dumps(packed.outline))))


@pytest.mark.parametrize("thing", OPERATIONS, ids=name_of)
def test_an_operation_arrives_as_it_was_sent(thing: Any) -> None:
    found = sent(thing)
    assert type(found) is type(thing)
    (tensors, outline), (others, same) = take_apart(thing), take_apart(found)
    assert outline == same
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype
        assert torch.equal(tensor, others[name])


def test_everything_that_methods_ask_is_among_them() -> None:
    ours = {name for name, kind in _KINDS.items() if kind.__module__.startswith("fedflux.")}
    assert {name_of(thing) for thing in OPERATIONS} == ours


def test_another_revision_is_refused_with_both_numbers() -> None:
    packed = pack(AskMeanLosses(4))
    assert packed.revision == revision_of(AskMeanLosses(4)) == 1
    with pytest.raises(FedfluxError, match="'mean-losses' has revision 1 here, and 3 is asked for"):
        unpack(replace(packed, revision=3))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(FedfluxError, match=r"operation 'read-the-disk' is not known here: .*mean-losses"):
        unpack(replace(pack(AskMeanLosses(4)), name="read-the-disk"))


@dataclass(frozen=True)
class Nameless:
    """Never registered."""

    count: int = 1


def test_what_was_never_registered_cannot_be_sent() -> None:
    with pytest.raises(FedfluxError, match="Nameless cannot be asked of clients"):
        pack(Nameless())

    @dataclass(frozen=True)
    class Kin(AskMeanLosses):
        """A kin of a registered one is another thing."""

    with pytest.raises(FedfluxError, match="Kin cannot be asked of clients"):
        pack(Kin(2))


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match=r"'mean-losses' is fedflux.*AskMeanLosses already"):
        operation("mean-losses")(Nameless)
    with pytest.raises(TypeError, match="int is no dataclass"):
        operation("a number")(int)
    assert "a number" not in _KINDS
