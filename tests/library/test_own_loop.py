"""FLUX in a loop of one's own says what the method says in a run, from the same latents."""

import json
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, engine_of, play, small

from fedflux import Describer, FedfluxError, FluxClustering
from fedflux.algorithms import DescriptorSettings, Flux
from fedflux.algorithms.flux.state import Clustered
from fedflux.data import Federation
from fedflux.descriptors.wire import from_arrays, join_arrays, to_arrays
from fedflux.engine import SimulatedEngine
from fedflux.library.messages import HEADER, Message
from fedflux.models import build_model

CLIENTS = 6
Client = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def view() -> Federation:
    return small("px", level=4, clients=CLIENTS, fraction=1.0)


def state_of(view: Federation, **descriptor: Any) -> tuple[Clustered, SimulatedEngine, Flux]:
    """A run's state after its last round."""
    settings = replace(SETTINGS, cluster_round=2, sharing="none", descriptor=DescriptorSettings(**descriptor))
    engine = engine_of(view)
    state, _ = play(Flux(settings), view, engine, 3)
    state, _ = Flux(settings).complete(state, view.cohort(range(CLIENTS), 3), engine)
    assert isinstance(state, Clustered)
    return state, engine, Flux(settings)


class Latents:
    """The statistic that is all latents: what a run's model makes of records."""

    def add(self, so_far: Any, latents: torch.Tensor, labels: Any) -> torch.Tensor:
        return latents if so_far is None else torch.cat([so_far, latents])


def part(view: Federation, client: int, split: Any, encode: Any) -> Client:
    data = view.cohort([client]).data(client, split)
    return encode(data.x), data.y


def played(view: Federation, encode: Any, finer: bool = False) -> tuple[FluxClustering, list[Message]]:
    """The same clusters by hand, from latents."""
    clients = [Describer(classes=view.classes, client=k, seed=SETTINGS.seed) for k in range(CLIENTS)]
    train = [part(view, k, "train", encode) for k in range(CLIENTS)]
    held_out = [part(view, k, "validation", encode)[0] for k in range(CLIENTS)]
    flux = FluxClustering()
    bounds = [d.bounds(x) for d, (x, _) in zip(clients, train, strict=True)]
    extractor = flux.extractor(bounds)
    if finer:
        scatter = [d.scatter(x, y, extractor) for d, (x, y) in zip(clients, train, strict=True)]
        extractor = flux.extractor(bounds, scatter=scatter)
    told = [d.describe(x, y, extractor, validation=v) for d, (x, y), v in zip(clients, train, held_out, strict=True)]
    flux.fit(told)
    flux.calibrate([d.tries(v, flux.offer_) for d, v in zip(clients, held_out, strict=True)])
    return flux, told


@pytest.mark.parametrize("projector", ["synthetic", "discriminant"])
def test_clusters_and_posteriors_are_those_of_a_run(view: Federation, projector: Any) -> None:
    state, engine, method = state_of(view, projector=projector)

    def encode(x: torch.Tensor) -> torch.Tensor:
        return engine.public(state.extractor.reference, x, Latents())

    flux, told = played(view, encode, projector == "discriminant")
    assert flux.n_clusters_ > 1
    np.testing.assert_array_equal(flux.labels_, state.assignment)
    kept = to_arrays(from_arrays(join_arrays([{n: a for n, a in one.items() if n != HEADER} for one in told])))
    assert kept.keys() == state.descriptors.keys()
    for name, array in state.descriptors.items():
        np.testing.assert_array_equal(kept[name], array, err_msg=name)
    assert state.tries is not None
    expected = method.unseen(state, view.cohort(range(CLIENTS)).features("test"), engine).placement
    assert expected is not None
    d = Describer(encode, classes=view.classes)
    scores = [d.scores(view.cohort([k]).data(k, "test").x, flux.offer_) for k in range(CLIENTS)]
    found = flux.place(scores)
    np.testing.assert_array_equal(found.posterior, expected.posterior)
    np.testing.assert_array_equal(flux.predict_proba(scores), expected.posterior)
    for name in ("cluster", "score", "novel", "calibrated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(flux.predict(told), state.clusters.likeliest(from_arrays(state.descriptors)))


def test_a_plain_torch_model_leads_to_the_same(view: Federation) -> None:
    state, engine, method = state_of(view)
    model: Any = build_model("mlp", view.input_shape, view.classes, 5)
    model.load_state_dict(state.extractor.reference.row(0))
    mean, deviation = view.dataset.scaling.pixels or (0.0, 1.0)

    def encode(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            latents: torch.Tensor = model.encode((x.float() / 255 - mean) / deviation)
        return latents

    flux, _ = played(view, encode)
    np.testing.assert_array_equal(flux.labels_, state.assignment)
    expected = method.unseen(state, view.cohort(range(CLIENTS)).features("test"), engine).placement
    assert expected is not None
    d = Describer(encode, classes=view.classes)
    scores = [d.scores(view.cohort([k]).data(k, "test").x, flux.offer_) for k in range(CLIENTS)]
    np.testing.assert_allclose(flux.predict_proba(scores), expected.posterior, atol=2e-3)


def test_messages_travel_as_json_and_as_npz(view: Federation) -> None:
    def by_json(message: Mapping[str, Any]) -> Any:
        return json.loads(json.dumps({name: array.tolist() for name, array in message.items()}))

    def by_npz(message: Mapping[str, Any]) -> Any:
        file = BytesIO()
        np.savez(file, **message)
        with np.load(BytesIO(file.getvalue()), allow_pickle=False) as read:
            return dict(read)

    found = []
    for way in (lambda message: message, by_json, by_npz):
        clients, d = worlds(7), Describer(classes=3)
        flux = FluxClustering()
        extractor = way(flux.extractor([way(d.bounds(x)) for x, _ in clients]))
        told = [way(d.describe(x, y, extractor, validation=x[:20])) for x, y in clients]
        flux.fit(told).calibrate([way(d.tries(x[:40], way(flux.offer_))) for x, _ in clients])
        found.append(flux.predict_proba([way(d.scores(x, way(flux.offer_))) for x, _ in clients]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def worlds(seed: int, clients: int = 6, size: int = 150, width: int = 12) -> list[tuple[Any, Any]]:
    """Latents of clients of two looks, and their labels."""
    rng = np.random.default_rng(seed)
    means = 2 * rng.normal(size=(2, 3, width))
    labels = [rng.integers(3, size=size) for _ in range(clients)]
    return [(means[k % 2][y] + rng.normal(size=(size, width)), y) for k, y in enumerate(labels)]


def test_no_array_of_an_answer_grows_with_the_records() -> None:
    d, flux = Describer(classes=3), FluxClustering()
    few, many = worlds(1, size=100), worlds(1, size=1000)
    extractor = flux.extractor([d.bounds(x) for x, _ in many])
    flux.fit([d.describe(x, y, extractor) for x, y in many])
    for ask in (
        lambda x, y: d.bounds(x),
        lambda x, y: d.scatter(x, y, extractor),
        lambda x, y: d.describe(x, y, extractor, validation=x[:50]),
        lambda x, y: d.scores(x, flux.offer_),
    ):
        shapes = [{n: a.shape for n, a in ask(*one[0]).items() if n != HEADER} for one in (few, many)]
        assert shapes[0] == shapes[1]


def test_features_of_scikit_learn_and_of_torch_are_described_alike() -> None:
    from sklearn.decomposition import PCA

    clients = worlds(2)
    pca = PCA(6).fit(np.concatenate([x for x, _ in clients]))
    model: Any = torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.Dropout(0.5))
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(pca.components_))
        model[0].bias.copy_(torch.from_numpy(-pca.components_ @ pca.mean_))
    found = []
    for d in (
        Describer(pca.transform, classes=3),
        Describer(lambda x: model(torch.as_tensor(x, dtype=torch.float32)).tolist(), classes=3),
    ):
        model.eval()
        flux = FluxClustering(components=6)
        extractor = flux.extractor([d.bounds(x) for x, _ in clients])
        found.append(flux.fit([d.describe(x, y, extractor) for x, y in clients]).labels_.tolist())
    assert found[0] == found[1] == [0, 1, 0, 1, 0, 1]


def test_a_torch_module_encodes_in_evaluation_mode_and_is_left_as_it_was() -> None:
    norm = torch.nn.BatchNorm1d(6).eval()
    model = torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.Dropout(0.5), norm)
    x = torch.from_numpy(worlds(3)[0][0]).float()
    d = Describer(model, classes=3)
    one, other = d.bounds(x), d.bounds(x)
    np.testing.assert_array_equal(one["low"], other["low"])
    assert [part.training for part in model] == [True, True, False]
    assert norm.num_batches_tracked == 0


def test_groups_count_for_what_they_are_worth() -> None:
    d, flux = Describer(classes=3), FluxClustering()
    x, y = worlds(4)[0]
    extractor = flux.extractor([d.bounds(x)])
    patients = np.repeat(np.arange(30), 5).astype(str)
    alike = x + 20 * np.random.default_rng(0).normal(size=(30, 12))[np.repeat(np.arange(30), 5)]
    plain, grouped = d.describe(alike, y, extractor), d.describe(alike, y, extractor, group=patients)
    assert grouped["effective"][0, 0] < 60 < plain["effective"][0, 0] == 150
    np.testing.assert_array_equal(grouped["mean"], plain["mean"])


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda d, x, y, e: d.describe(x, y + 1, e), "label 3 is outside 0 to 2"),
        (lambda d, x, y, e: d.describe(x, y[:5], e), "give one label a record"),
        (lambda d, x, y, e: d.describe(x[:0], y[:0], e), "holds no record"),
        (lambda d, x, y, e: d.describe(np.where(x > 3, np.nan, x), y, e), r"the latent of record \d+ holds NaN"),
        (lambda d, x, y, e: d.describe(x, y, d.bounds(x)), "bounds, where extractor is needed"),
        (lambda d, x, y, e: d.describe(x, y, {"low": x}), "is no extractor"),
        (lambda d, x, y, e: d.scores(x, e), "extractor, where offer is needed"),
        (lambda d, x, y, e: Describer(classes=4).describe(x, y, e), "for 3 classes, and this client has 4"),
        (lambda d, x, y, e: Describer(lambda x: x[:, 0], classes=3).bounds(x), "one row of numbers a record"),
        (lambda d, x, y, e: d.describe(x, y, e, group=[1, 2]), "2 groups"),
        (lambda d, x, y, e: d.describe(x[:, :3], y, e), "made for latents of 12 numbers, and these have 3"),
        (lambda d, x, y, e: d.scatter(x[:, :3], y, e), "made for latents of 12 numbers, and these have 3"),
        (lambda d, x, y, e: d.describe(x, y.astype(str), e), "give numbers from 0 to 2"),
        (lambda d, x, y, e: d.describe(x, np.full(len(x), np.nan), e), "give numbers from 0 to 2"),
        (lambda d, x, y, e: d.bounds(x.astype(str)), "give one row of numbers a record"),
        (lambda d, x, y, e: d.bounds(None), "records are NoneType: give a row a record"),
        (lambda d, x, y, e: FluxClustering().fit(None), "NoneType is no list of descriptors"),
        (lambda d, x, y, e: Describer(classes=2.5), "classes=2.5: give the number of classes"),  # type: ignore[arg-type]
        (lambda d, x, y, e: d.describe(x, y, {**e, "state.bounds.low": e["state.bounds.low"][:3]}), "damaged"),
    ],
)
def test_a_client_refuses_what_it_cannot_answer(ask: Any, words: str) -> None:
    x, y = worlds(5)[0]
    d = Describer(classes=3)
    with pytest.raises(FedfluxError, match=words):
        ask(d, x, y, FluxClustering().extractor([d.bounds(x)]))


def test_the_server_refuses_bad_answers_by_number() -> None:
    clients, d, flux = worlds(6), Describer(classes=3), FluxClustering()
    bounds = [d.bounds(x) for x, _ in clients]
    with pytest.raises(FedfluxError, match="bounds 2: its bounds reach"):
        flux.extractor([*bounds[:2], {**bounds[2], "high": bounds[2]["high"] + 1e6}, *bounds[3:]])
    extractor = flux.extractor(bounds)
    told = [d.describe(x, y, extractor) for x, y in clients]
    broken = {**told[1], "mean": told[1]["mean"] + np.float32(1e4)}
    with pytest.raises(FedfluxError, match="descriptor 1: its descriptor lies far outside the bounds"):
        flux.fit([told[0], broken])
    flux.fit(told)
    scores = [d.scores(x, flux.offer_) for x, _ in clients]
    flux.extractor(bounds[:3])
    np.testing.assert_array_equal(flux.predict(told), flux.labels_)
    with pytest.raises(FedfluxError, match="descriptor 0 was made under another extractor"):
        flux.fit(told)
    other = FluxClustering().fit(told[:3], extractor=extractor)
    with pytest.raises(FedfluxError, match="scores 0 was made under another offer"):
        other.predict_proba(scores)
    with pytest.raises(FedfluxError, match="need an offer"):
        FluxClustering().fit(told).predict_proba(scores)
    with pytest.raises(FedfluxError, match="give None for those who said nothing"):
        other.calibrate([None])


def test_a_client_insists_on_its_privacy() -> None:
    pytest.importorskip("opendp")
    clients = worlds(10, size=3000)  # whose clients stay clear of the threshold: noise has no seed
    d = [Describer(classes=3, epsilon=2.0) for _ in clients]
    with pytest.raises(FedfluxError, match="bounds are not protected"):
        d[0].bounds(clients[0][0])
    public = np.random.default_rng(0).normal(size=(100, 12))
    extractor = FluxClustering(epsilon=4.0).private_extractor(public, classes=3)
    with pytest.raises(FedfluxError, match="this client insists on"):
        d[0].describe(*clients[0], extractor)
    plain = FluxClustering().extractor([Describer(classes=3).bounds(clients[0][0])])
    with pytest.raises(FedfluxError, match="promises no privacy"):
        d[0].describe(*clients[0], plain)
    flux = FluxClustering(epsilon=2.0)
    extractor = flux.private_extractor(public, classes=3)
    told = [one.describe(x, y, extractor) for one, (x, y) in zip(d, clients, strict=True)]
    assert flux.fit(told).labels_.tolist() == [0, 1, 0, 1, 0, 1]
    assert (told[0]["noise"] > 0).all()
    with pytest.raises(FedfluxError, match="as often as its ε allows"):
        d[0].describe(*clients[0], extractor)
    assert flux.predict_proba([d[1].scores(clients[1][0], flux.offer_)]).argmax() == 1


def test_few_records_are_told_to_take_scatter() -> None:
    clients, d, flux = worlds(9, clients=120, size=15), Describer(classes=3), FluxClustering()
    extractor = flux.extractor([d.bounds(x) for x, _ in clients])
    with pytest.warns(UserWarning, match="records a class: an extractor with scatter may see finer"):
        flux.fit([d.describe(x, y, extractor) for x, y in clients])
