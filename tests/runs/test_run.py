"""One run: repeatable to the bit, indifferent to the order of clients, and consistent with what it leaves on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.runs.making import make_client, read_json, read_rounds, run_npz, save_clients

import fedflux
from fedflux.data import Cohort, Federation
from fedflux.runs.config import RunConfig, make_config
from fedflux.runs.runner import build_federation, run_config
from fedflux.runs.session import cohort_of

SHORT: dict[str, Any] = {"shift": "px", "level": 3, "clients": 6, "rounds": 4, "cluster_round": 2, "device": "cpu"}
APART = {"sharing": "none"}
"""Clusters have one model each."""


def cohorts(federation: Federation, config: RunConfig) -> list[Cohort]:
    """The members of every round."""
    return [cohort_of(federation, range(len(federation)), config, r) for r in range(1, config.rounds + 1)]


def run(out: Path, **options: Any) -> dict[str, Any]:
    return fedflux.run(**{**SHORT, **options}, out=out).to_dict()


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("first") / "run")


def test_the_same_seed_gives_the_same_bits(first: dict[str, Any], tmp_path: Path) -> None:
    again = run(tmp_path)
    for key in ("known_per_client", "test_per_client", "assignment", "known", "test", "bytes_up", "bytes_down"):
        assert again[key] == first[key], key
    old = Path(first["run_dir"])
    assert (tmp_path / "models.safetensors").read_bytes() == (old / "models.safetensors").read_bytes()
    mine, theirs = arrays(tmp_path / "descriptors.npz"), arrays(old / "descriptors.npz")
    assert mine.keys() == theirs.keys()
    assert all(mine[key].tobytes() == theirs[key].tobytes() for key in mine)


def test_another_seed_gives_other_numbers(first: dict[str, Any], tmp_path: Path) -> None:
    other = run(tmp_path, seed=43)
    assert other["known_per_client"] != first["known_per_client"]
    old = Path(first["run_dir"])
    assert (tmp_path / "models.safetensors").read_bytes() != (old / "models.safetensors").read_bytes()


def test_a_run_leaves_torch_as_it_was(tmp_path: Path) -> None:
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    run(tmp_path, rounds=1, cluster_round=1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_folder_is_complete_and_agrees_with_itself(first: dict[str, Any]) -> None:
    folder = Path(first["run_dir"])
    assert sorted(file.name for file in folder.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.json",
        "descriptors.npz",
        "events.jsonl",
        "files.json",
        "models.safetensors",
        "result.json",
        "rounds.jsonl",
        "samples.npz",
        "scaling.json",
        "trained.json",
        "trained.safetensors",
        "trunk.safetensors",
    ]
    assert read_json(folder / "result.json") == first
    config, rounds = read_json(folder / "config.json"), read_rounds(folder)
    assert config["command"] == first["command"]
    assert {key: config[key] for key in SHORT} == SHORT
    assert [entry["round"] for entry in rounds] == [1, 2, 3, 4]
    for key in ("bytes_up", "bytes_down"):
        after = first[key] - sum(sum(entry[key].values()) for entry in rounds)
        assert 0 < after < 0.02 * first[key]  # members try their validation parts after the last round
    for phase in ("training", "descriptor", "clustering"):
        spent = sum(entry["seconds"].get(phase, 0) for entry in rounds)
        assert first[f"seconds_{phase}"] == pytest.approx(spent)
        assert 0 < spent < first["seconds"]
    described = arrays(folder / "descriptors.npz")
    assert described["clients"].tolist() == list(range(6))
    assert described["labels"].tolist() == first["assignment"]
    assert len(np.unique(described["truth"])) == first["clusters_true"]
    models = load_file(folder / "models.safetensors")
    assert {len(tensor) for tensor in models.values()} == {first["clusters_found"]}
    assert first["clusters_found"] == len(set(first["assignment"]))


def test_scores_are_summaries_of_the_clients(first: dict[str, Any]) -> None:
    for name in ("known", "test"):
        per_client = first[f"{name}_per_client"]
        assert len(per_client) == 6
        assert all(0 <= score <= 100 for score in per_client)
        assert first[name] == pytest.approx(np.mean(per_client))
        assert first[f"{name}_worst"] == min(per_client)
    assert first["worst"] == first["known_worst"]
    assert first["known"] > 20  # ten classes: chance is 10
    assert (first["rounds"], first["cluster_round"], first["epsilon"]) == (4, 2, None)


def model_bytes(folder: Path) -> int:
    return sum(tensor[0].nbytes for tensor in load_file(folder / "models.safetensors").values())


BOUNDS = 2 * 64 * 4  # minimum and maximum of the MLP's 64 latents, as 4-byte floats
# l = 10, ten classes: means (4 bytes), deviations (2), correlations (1), counts, effective counts, validation mean
DESCRIPTOR = 10 * (10 * 4 + 10 * 2 + 45) + 10 * 4 + 11 * 4 + 11 * 4


def test_bytes_are_models_each_round_and_bounds_and_descriptor_once(tmp_path: Path) -> None:
    run(tmp_path, **APART)
    folder, model = tmp_path, model_bytes(tmp_path)
    assert model == 4 * (3 * 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)  # px makes the 8×8 images RGB
    for entry in read_rounds(folder):
        clustering = entry["round"] == 2
        assert set(entry["bytes_up"].values()) == {model + (BOUNDS + DESCRIPTOR if clustering else 0)}
        assert set(entry["bytes_down"].values()) == {model + (BOUNDS if clustering else 0)}
        assert len(entry["bytes_up"]) == len(entry["bytes_down"]) == 6


def test_models_with_a_shared_trunk_travel_beside_clusters_own(first: dict[str, Any]) -> None:
    folder = Path(first["run_dir"])
    model = model_bytes(folder)
    assert load_file(folder / "trunk.safetensors").keys() == load_file(folder / "models.safetensors").keys()
    for entry in read_rounds(folder):
        if entry["round"] != 2:
            told = {model * (1 if entry["round"] < 2 else 2)}
            assert set(entry["bytes_up"].values()) == set(entry["bytes_down"].values()) == told
        assert set(entry.get("parts", {})) == ({"own", "trunk"} if entry["round"] > 2 else set())
    assert first["sharing_parts"]["branches"] == ["own", "trunk"]


@pytest.mark.parametrize(("algorithm", "messages"), [("fedavg", 1), ("local", 0)])
def test_bytes_of_methods_without_descriptors(algorithm: str, messages: int, tmp_path: Path) -> None:
    result = run(tmp_path, algorithm=algorithm)
    assert result["bytes_up"] == result["bytes_down"] == 4 * 6 * messages * model_bytes(tmp_path)
    assert not (tmp_path / "descriptors.npz").exists()
    assert (result["clusters_found"], result["cluster_round"]) == (6 if algorithm == "local" else 1, None)
    assert (result["test"] is None) == (algorithm == "local")


def test_a_folder_used_again_keeps_nothing_of_the_run_before(tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path, algorithm="fedavg", rounds=1, cluster_round=1)
    assert not (tmp_path / "descriptors.npz").exists()
    assert read_json(tmp_path / "config.json")["algorithm"] == "fedavg"
    assert len(read_rounds(tmp_path)) == 1


def test_an_interrupted_run_leaves_no_results_of_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, rounds=1, cluster_round=1)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedflux.algorithms.flux.plain.Flux.round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, seed=7)
    assert {file.name for file in tmp_path.iterdir()} == {".lock", "config.json", "events.jsonl", "scaling.json"}
    assert read_json(tmp_path / "scaling.json")["kind"] == "pixels"
    assert read_json(tmp_path / "config.json")["seed"] == 7


def test_two_files_of_data_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = set()
    for seed in (1, 2, 1):
        data = save_clients(tmp_path / f"{seed}.npz", [make_client(10 * seed + k, 6) for k in range(2)])
        named = {"dataset": "npz", "data_dir": data, "shift": "none", "rounds": 1, "algorithm": "fedavg"}
        result = run_config(make_config({**named, "device": "cpu"}))
        folders.add(result["run_dir"])
    assert len(folders) == 2


def test_progress_is_told_after_every_round(tmp_path: Path) -> None:
    from fedflux.runs.runner import run_config
    from fedflux.runs.session import Progress

    told: list[Progress] = []
    result = run_config(make_config({**SHORT, "out": tmp_path}), told.append)
    assert [progress.round for progress in told] == [1, 2, 3, 4]
    assert [bool(progress.events) for progress in told] == [False, True, False, False]
    assert told[0].clusters == 1
    assert told[-1].clusters == result["clusters_found"]
    validation = read_rounds(tmp_path)[-1]["validation"]
    assert told[-1].accuracy == pytest.approx(np.mean(list(validation.values())))


def permuted_federation(path: Path, order: list[int]) -> Path:
    """Six clients in two groups; client k answers k of its ten test examples wrongly, so that scores tell them apart.

    Four training examples a client leave no validation part, whose draw would depend on the client's number.
    """
    train = [make_client(k, 4, (0, 1), negative=k % 2 == 1) for k in range(6)]
    test = [make_client(50 + k, 10, (0, 1), negative=k % 2 == 1) for k in range(6)]
    for k, (_, y) in enumerate(test):
        y[:k] = 1 - y[:k]
    return save_clients(path, [train[k] for k in order], [test[k] for k in order])


def test_permuting_clients_permutes_the_results(tmp_path: Path) -> None:
    """With one full batch an epoch the order of examples cannot matter, so only the names of clients change."""
    order = [3, 0, 5, 1, 4, 2]
    options: dict[str, Any] = {"rounds": 12, "cluster_round": 6, "epochs": 1, "batch_size": 64, "lr": 0.05}
    results, described = [], []
    for name, clients in (("plain", list(range(6))), ("permuted", order)):
        data = permuted_federation(tmp_path / f"{name}.npz", clients)
        results.append(run_npz(data, tmp_path / name, clusterer="agglomerative", **options))
        described.append(arrays(tmp_path / name / "descriptors.npz"))
    plain, permuted = results
    assert len(set(plain["known_per_client"])) == 6
    for key in ("known_per_client", "test_per_client"):
        assert permuted[key] == pytest.approx([plain[key][k] for k in order])
    for key in ("mean", "spread", "count", "effective"):
        exact = 1e-4 if key != "spread" else float(np.finfo(np.float16).eps)  # these travel in 16 bits
        np.testing.assert_allclose(described[1][key], described[0][key][order], rtol=exact, atol=1e-5)
    before, after = np.array(plain["assignment"])[order], np.array(permuted["assignment"])
    assert np.array_equal(before[:, None] == before, after[:, None] == after)
    assert 1 < plain["clusters_found"] < 6


PARTIAL: dict[str, Any] = {**SHORT, "clients": 10, "participation": 0.4, "rounds": 5}


def test_late_clients_and_clients_that_never_took_part_are_placed(tmp_path: Path) -> None:
    result = run(tmp_path, **PARTIAL)
    federation, config = build_federation(make_config(PARTIAL))
    members = [set(cohort) for cohort in cohorts(federation, config)]
    clustered = members[1]
    late = {k for cohort in members[2:] for k in cohort} - clustered
    never = set(range(10)) - clustered - late
    assert late, "choose another seed: nobody is late"
    assert never, "choose another seed: everyone took part"
    rounds = read_rounds(tmp_path)
    assert [{int(k) for k in entry["bytes_up"]} for entry in rounds] == members
    assert all(len(cohort) == 4 for cohort in members)
    described = arrays(tmp_path / "descriptors.npz")
    assert sorted(described["clients"].tolist()) == list(range(10))
    assert set(described["clients"][:4].tolist()) == clustered
    assert set(described["clients"][4 : 4 + len(late)].tolist()) == late
    assert set(described["clients"][4 + len(late) :].tolist()) == never
    assert all(0 <= label < result["clusters_found"] for label in result["assignment"])
    assert described["labels"].tolist() == [result["assignment"][k] for k in described["clients"]]
    assert None not in result["known_per_client"] + result["test_per_client"]


def test_a_late_client_pays_for_its_descriptor_when_it_comes(tmp_path: Path) -> None:
    run(tmp_path, **PARTIAL, **APART)
    model = model_bytes(tmp_path)
    rounds = read_rounds(tmp_path)
    placed = set(rounds[1]["bytes_up"])
    newcomers = 0
    for entry in rounds[2:]:
        for client, sent in entry["bytes_up"].items():
            new = client not in placed
            newcomers += new
            assert sent == model + (DESCRIPTOR if new else 0)
            # a newcomer gets the reference model and the bounds first, then its cluster's model
            assert entry["bytes_down"][client] == model + (BOUNDS + model if new else 0)
        placed |= set(entry["bytes_up"])
    assert newcomers


def test_every_round_draws_its_own_members_from_the_seed() -> None:
    federation, config = build_federation(make_config({**PARTIAL, "rounds": 8}))
    drawn = [cohort.ids for cohort in cohorts(federation, config)]
    assert drawn == [cohort.ids for cohort in cohorts(federation, config)]
    assert len(set(drawn)) > 1
    assert all(list(ids) == sorted(set(ids)) for ids in drawn)


def test_one_member_is_the_least() -> None:
    federation, config = build_federation(make_config({**SHORT, "participation": 0.01}))
    assert {len(cohort) for cohort in cohorts(federation, config)} == {1}


def test_the_oracle_puts_the_true_clusters_in(tmp_path: Path) -> None:
    result = run(tmp_path, algorithm="oracle")
    assert (result["ari"], result["nmi"], result["pairs_right"]) == (1.0, 1.0, 1.0)
    assert result["clusters_found"] == result["clusters_true"]
