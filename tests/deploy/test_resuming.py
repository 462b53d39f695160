"""A run that died goes on from its last checkpoint to the same end."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.deploy.staging import make_grid, play

from fedflux.deploy.flower.checkpoint import load_checkpoint
from fedflux.errors import FedfluxError
from fedflux.files import read_object

CONFIG: dict[str, Any] = {"rounds": 5, "cluster_round": 3, "min_nodes": 9}


class PowerCutError(BaseException):
    """The server dies."""


def dies_in_round(round: int, folder: Path) -> None:
    grid = make_grid(range(10), {}, unlabelled={2})
    original = grid._app

    def cut(message: Any, context: Any) -> Any:
        if message.metadata.message_type == "train" and message.content["ask"]["round"] == round:
            raise PowerCutError
        return original(message, context)

    grid._app = cut
    with pytest.raises(PowerCutError):
        play(grid, out=str(folder), **CONFIG)


@pytest.mark.parametrize("round", [1, 3, 5])
def test_a_run_resumes_with_the_same_assignments_and_models(tmp_path: Path, round: int) -> None:
    """Before, at and after clustering; every node has lost its memory meanwhile."""
    whole = play(make_grid(range(10), {}, unlabelled={2}), **CONFIG)
    dies_in_round(round, tmp_path)
    again = play(make_grid(range(10), {}, unlabelled={2}), out=str(tmp_path), resume=True, **CONFIG)
    assert again.state.assignment == whole.state.assignment
    assert again.known == whole.known
    assert again.placements == whole.placements
    assert min(again.validation) == round
    for name, tensor in whole.state.models.tensors.items():
        assert (tensor == again.state.models.tensors[name]).all()


def test_a_finished_run_serves_latecomers_without_training(tmp_path: Path) -> None:
    first = play(make_grid([k for k in range(10) if k != 2], {}), out=str(tmp_path), **CONFIG)
    again = play(make_grid(range(10), {}, unlabelled={2}), out=str(tmp_path), resume=True, **CONFIG)
    assert again.validation == {}
    assert again.known == first.known
    assert again.placements[2].taken


def test_what_a_run_leaves(tmp_path: Path) -> None:
    found = play(make_grid(range(10), {}, unlabelled={2}), out=str(tmp_path), **CONFIG)
    result = read_object(tmp_path / "result.json")
    assert result is not None
    assert result["assignment"] == found.state.assignment
    assert result["unlabelled"]["2"]["cluster"] == found.placements[2].cluster
    assert len(list(tmp_path.glob("cluster-*.safetensors"))) == result["clusters_found"] == len(found.state.models)
    assert len(list(tmp_path.glob("round-*.safetensors"))) == 2


def test_a_refused_client_stays_out_after_resuming(tmp_path: Path) -> None:
    import numpy as np
    from tests.deploy.test_bad_nodes import arrays_changed

    bad = {9: arrays_changed("train", "model", lambda a: {k: np.full_like(v, np.nan) for k, v in a.items()})}
    play(make_grid(range(10), {}, bad), out=str(tmp_path), **{**CONFIG, "rounds": 4})
    again = play(make_grid(range(10), {}), out=str(tmp_path), resume=True, **CONFIG)
    assert "NaN" in again.roster.refused[9]
    assert 9 not in again.known


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    play(make_grid(range(10), {}), out=str(tmp_path), **CONFIG)
    newest = max(tmp_path.glob("round-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    state, complaints = load_checkpoint(tmp_path)
    assert state is not None
    assert state.round == 4
    assert len(complaints) == 1
    assert newest.name in complaints[0]


def test_another_seed_cannot_go_on(tmp_path: Path) -> None:
    play(make_grid(range(3), {"clients": 3}), out=str(tmp_path), clients=3, rounds=1)
    with pytest.raises(FedfluxError, match="begun with seed 42"):
        play(make_grid(range(3), {"clients": 3}), out=str(tmp_path), resume=True, clients=3, rounds=2, seed=7)


def test_a_new_run_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    told = {"clients": 3, "out": str(tmp_path)}
    play(make_grid(range(3), {"clients": 3}), rounds=3, **told)
    play(make_grid(range(3), {"clients": 3}), rounds=1, **told)
    state, _ = load_checkpoint(tmp_path)
    assert state is not None
    assert state.round == 1


def test_another_model_cannot_go_on(tmp_path: Path) -> None:
    told = {"clients": 3, "out": str(tmp_path)}
    play(make_grid(range(3), {"clients": 3}), rounds=1, **told)
    example = "tests.deploy.staging:wider"
    with pytest.raises(FedfluxError, match=f"the start has a wrong shape: .*; model = '{example}'"):
        play(make_grid(range(3), {"clients": 3, "model": example}), rounds=2, resume=True, model=example, **told)
