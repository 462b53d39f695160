"""What clients are asked about clusters: their answers, and which answers are refused."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import with_centroids
from fedflux.clustering.placement.misfit import UsualMisfit, misfit_of
from fedflux.clustering.placement.offer import Offer
from fedflux.clustering.placement.queries import DRAWS, SIZES, AskPlacement, AskTries, ReducedLatents, Tries
from fedflux.data import Features
from fedflux.data.holding import About, LooseHolding, NothingToTellError, Seen
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.queries import AskDescriptor

LENGTH, CLUSTERS = 6, 3
ABOUT = About({"train": 100, "validation": 60, "test": 40}, 4)
DESCRIBED = AskDescriptor(4, LENGTH, 1, None, given=Projector(np.zeros(LENGTH), np.eye(LENGTH)))


@dataclass(frozen=True, eq=False)
class Holding(LooseHolding):
    """Images by number."""

    numbers: NDArray[np.int64] | None = None

    def rows(self, split: str) -> NDArray[np.int64]:
        return np.arange(len(self.features)) if self.numbers is None else self.numbers


def holding(images: NDArray[np.float64], client: int = 0, numbers: NDArray[np.int64] | None = None) -> Holding:
    return Holding(Features(torch.from_numpy(images)), client, numbers=numbers)


@pytest.fixture(scope="module")
def world() -> Population:
    return Population(0, classes=4, length=LENGTH)


@pytest.fixture(scope="module")
def offer(world: Population) -> Offer:
    rng, own = np.random.default_rng(0), np.repeat(np.arange(CLUSTERS), 2)
    clients = [world.draw(rng, 200, move=np.full_like(world.mean, 1.5 * m)) for m in own]
    mixtures = with_centroids(describe_samples(clients, 4), own).mixtures
    prior = np.array([0.5, 0.25, 0.25], dtype=np.float32)
    return Offer(mixtures, prior, usual=UsualMisfit(6.0, 12.0, 0.1, 6.0, 50.0))


@pytest.fixture(scope="module")
def images(world: Population) -> NDArray[np.float64]:
    return world.draw(np.random.default_rng(1), 60, move=np.full_like(world.mean, 1.5))[0]


def placed(offer: Offer, images: NDArray[np.float64], **held: Any) -> dict[str, Any]:
    return AskPlacement(DESCRIBED, offer).answer(holding(images, **held), Seen([torch.from_numpy(images)]))


def tried(offer: Offer, images: NDArray[np.float64], seed: int = 7, **held: Any) -> dict[str, Any]:
    return AskTries(DESCRIBED, offer.mixtures, seed).answer(holding(images, **held), Seen([torch.from_numpy(images)]))


def test_a_placement_is_what_the_offer_makes_of_the_images(offer: Offer, images: NDArray[np.float64]) -> None:
    found = placed(offer, images)
    posterior, score = offer.place(images, 60.0)
    assert set(found) == {"posterior", "score"}
    np.testing.assert_allclose(found["posterior"], posterior, rtol=1e-6)
    assert float(found["score"]) == pytest.approx(score, rel=1e-5)
    assert posterior.argmax() == 1


def test_copies_say_no_more_than_their_images(offer: Offer, images: NDArray[np.float64]) -> None:
    few, numbers = images[:2], np.tile(np.arange(2), 20)
    once, often = placed(offer, few), placed(offer, np.tile(few, (20, 1)), numbers=numbers)
    np.testing.assert_allclose(often["posterior"], once["posterior"], atol=0.002)
    apart = placed(offer, np.tile(few, (20, 1)))
    assert apart["posterior"].max() >= once["posterior"].max()


def test_nothing_but_the_choice_leaves_a_client(offer: Offer, images: NDArray[np.float64]) -> None:
    found = placed(offer, images)
    assert sum(array.size for array in found.values()) == CLUSTERS + 1
    np.testing.assert_array_equal(found["posterior"], np.round(found["posterior"].astype(np.float64), 3).astype("f4"))


def test_passes_need_no_labels(offer: Offer) -> None:
    for query, split in (
        (AskPlacement(DESCRIBED, offer), "test"),
        (AskTries(DESCRIBED, offer.mixtures, 1), "validation"),
    ):
        (only,) = query.passes()
        assert (only.split, only.labelled) == (split, False)


def test_who_holds_nothing_has_nothing_to_tell(offer: Offer, images: NDArray[np.float64]) -> None:
    with pytest.raises(NothingToTellError, match="no images in its test part"):
        AskPlacement(DESCRIBED, offer).answer(holding(images[:0]), Seen([None]))
    with pytest.raises(NothingToTellError, match="no validation examples"):
        AskTries(DESCRIBED, offer.mixtures, 1).answer(holding(images[:0]), Seen([None]))


def test_tries_are_of_pieces_and_of_the_whole(offer: Offer, images: NDArray[np.float64]) -> None:
    found = tried(offer, images)
    expected = [size for size in SIZES if size < 60 for _ in range(DRAWS)] + [60]
    np.testing.assert_array_equal(found["sizes"], expected)
    each = offer.mixtures.log_likelihoods(images)
    np.testing.assert_allclose(found["likelihoods"][-1], each.sum(axis=0), rtol=1e-5)
    misfit = misfit_of(offer.mixtures, images, each.sum(axis=0), 60)
    np.testing.assert_allclose(found["misfit"], [misfit.mean, misfit.variance, 60], rtol=1e-5)
    assert len({tuple(row) for row in found["likelihoods"].tolist()}) == len(expected)  # every piece is another


def test_tries_are_the_same_for_a_client_and_others_for_another(offer: Offer, images: NDArray[np.float64]) -> None:
    first = tried(offer, images, client=3)
    np.testing.assert_array_equal(first["likelihoods"], tried(offer, images, client=3)["likelihoods"])
    for other in (tried(offer, images, client=4), tried(offer, images, seed=8, client=3)):
        assert (first["likelihoods"][:-1] != other["likelihoods"][:-1]).any()
        np.testing.assert_array_equal(first["likelihoods"][-1], other["likelihoods"][-1])


def test_a_small_part_is_tried_as_a_whole_alone(offer: Offer, images: NDArray[np.float64]) -> None:
    found = tried(offer, images[:5])
    np.testing.assert_array_equal(found["sizes"], [5])


Change = Callable[[dict[str, Any]], dict[str, Any]]


def changed(name: str, value: Callable[[Any], Any]) -> Change:
    return lambda answer: {**answer, name: value(answer[name])}


def at_first(number: float) -> Callable[[Any], Any]:
    def put(array: Any) -> Any:
        array = array.copy()
        array.flat[0] = number
        return array

    return put


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("posterior", lambda p: p[:-1]), "wrong shape"),
        (changed("score", lambda s: s[None]), "wrong shape"),
        (changed("posterior", at_first(np.nan)), "NaN"),
        (changed("score", at_first(np.inf)), "NaN or infinite"),
        (changed("posterior", lambda p: np.array([-0.5, 1.0, 0.5], dtype=np.float32)), "no distribution"),
        (changed("posterior", lambda p: p * 3), "no distribution"),
        (changed("posterior", np.zeros_like), "no distribution"),
        (lambda answer: {"posterior": answer["posterior"]}, "score"),
        (lambda answer: {**answer, "labels": np.zeros(3)}, "labels"),
    ],
)
def test_what_is_no_placement_is_refused(change: Change, words: str, offer: Offer, images: NDArray[np.float64]) -> None:
    query, honest = AskPlacement(DESCRIBED, offer), placed(offer, images[:40])
    assert query.fault(honest, ABOUT) is None
    fault = query.fault(change(honest), ABOUT)
    assert fault is not None
    assert words in fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("likelihoods", lambda rows: rows[:, :-1]), "wrong shape"),
        (changed("likelihoods", lambda rows: rows[:-1]), "wrong shape"),
        (changed("sizes", lambda sizes: sizes[None]), "wrong shape"),
        (changed("misfit", lambda misfit: misfit[:2]), "wrong shape"),
        (changed("likelihoods", at_first(-np.inf)), "NaN or infinite"),
        (changed("misfit", at_first(np.nan)), "NaN"),
        (changed("sizes", at_first(61.0)), "more images than it holds"),
        (lambda answer: {"sizes": answer["sizes"]}, "likelihoods"),
        (
            lambda answer: {
                **answer,
                "sizes": np.tile(answer["sizes"], 9),
                "likelihoods": np.tile(answer["likelihoods"], (9, 1)),
            },
            "its tries are",
        ),
        (
            lambda answer: {**answer, "sizes": answer["sizes"][:0], "likelihoods": answer["likelihoods"][:0]},
            "its tries are 0",
        ),
    ],
)
def test_what_are_no_tries_is_refused(change: Change, words: str, offer: Offer, images: NDArray[np.float64]) -> None:
    query, honest = AskTries(DESCRIBED, offer.mixtures, 7), tried(offer, images)
    assert query.fault(honest, ABOUT) is None
    fault = query.fault(change(honest), ABOUT)
    assert fault is not None
    assert words in fault


@pytest.mark.parametrize(
    "change",
    [
        changed("sizes", at_first(0.0)),
        changed("sizes", at_first(-5.0)),
        changed("misfit", lambda misfit: np.array([-1.0, 1.0, 60.0], dtype=np.float32)),
        changed("misfit", lambda misfit: np.array([6.0, -1.0, 60.0], dtype=np.float32)),
        changed("misfit", lambda misfit: np.array([6.0, 1.0, 1e9], dtype=np.float32)),
    ],
)
def test_tries_that_cannot_be_are_refused(change: Change, offer: Offer, images: NDArray[np.float64]) -> None:
    query = AskTries(DESCRIBED, offer.mixtures, 7)
    assert query.fault(change(tried(offer, images)), ABOUT) is not None


@pytest.mark.parametrize("score", [-0.5, 1.5])
def test_a_score_that_is_no_probability_is_refused(score: float, offer: Offer, images: NDArray[np.float64]) -> None:
    answer = {**placed(offer, images[:40]), "score": np.array(score, dtype=np.float32)}
    assert AskPlacement(DESCRIBED, offer).fault(answer, ABOUT) is not None


def test_tries_of_members_join(offer: Offer, images: NDArray[np.float64]) -> None:
    answers = [tried(offer, images[:size], client=size) for size in (10, 30, 60)]
    whole = Tries.of((2, 5, 9), answers, CLUSTERS)
    parts = Tries.of((2,), answers[:1], CLUSTERS).join(Tries.of((5, 9), answers[1:], CLUSTERS))
    for name in Tries.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert len(whole.likelihoods) == len(whole.sizes) == len(whole.client)
    np.testing.assert_array_equal(np.unique(whole.client), whole.member)
    assert [one.count for one in whole.misfits()] == [10, 30, 60]
    nobody = Tries.of((), (), CLUSTERS)
    assert nobody.likelihoods.shape == (0, CLUSTERS)
    assert nobody.misfit.shape == (0, 3)


def test_reduced_latents_are_the_same_by_batch_and_by_client() -> None:
    rng = np.random.default_rng(2)
    projector = Projector(rng.normal(size=5), rng.normal(size=(3, 5)))
    statistic = ReducedLatents(replace(DESCRIBED, components=3, given=projector))
    latents = torch.from_numpy(rng.normal(size=(9, 5)))
    by_batch = statistic.add(statistic.add(None, latents[:4], None), latents[4:], None)
    first, second = statistic.of_each(latents, None, [4, 9])
    torch.testing.assert_close(torch.cat([first, second]), by_batch)
    assert (len(first), len(second)) == (4, 5)
