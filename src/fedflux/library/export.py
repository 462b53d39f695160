"""One client's model in files that plain PyTorch opens: a program with its weights, a state dict, and what to know.

`model.pt2` is the whole model, scaling included: `torch.export.load("model.pt2").module()(x)` takes a batch of inputs
as the client has them and gives a row of scores each; the largest is the answer. `model.safetensors` is its state
dict, and `model.json` says what goes in and what comes out.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedflux.errors import FedfluxError
from fedflux.files import make_folder, write_bytes, write_json, written_whole
from fedflux.library.module import ClientModel
from fedflux.library.trained import TrainedRun
from fedflux.plugins import in_words

PROGRAM, STATE, CARD = "model.pt2", "model.safetensors", "model.json"
FORMAT = 1
ONE = "one score a class: the largest is the answer, their softmax the probabilities"
SEVERAL = "one score a label: its sigmoid is the label's probability"


def export_client(run: TrainedRun, client: str | int, out: Path) -> dict[str, Any]:
    """Write a known client's model; the answer says where and which files."""
    model, number = run.model(client), run.number(client)
    example = torch.zeros((2, *run.input_shape), dtype=run.input_type)
    folder = make_folder(out, "exported model", CARD, {"client", "class_names"})
    program = _program(model, example)
    with written_whole(folder / PROGRAM) as handle:
        torch.export.save(program, handle)
    write_bytes(folder / STATE, save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
    name = run.clients[number]
    scores = run.result.get("known_per_client") or []
    write_json(
        folder / CARD,
        {
            "format": FORMAT,
            "client": name,
            "cluster": run.clusters[name],
            "known": scores[number] if number < len(scores) else None,
            "class_names": run.class_names,
            "input": {"shape": run.input_shape, "type": str(run.input_type).removeprefix("torch."), **_range(run)},
            "output": SEVERAL if run.form.several_labels else ONE,
            "scaling": run.scaling.as_plain(),
            "weights": model.state_dict()["weights"].tolist(),
            "algorithm": run.config.algorithm,
            "command": run.result.get("command"),
        },
    )
    return {"path": str(folder), "models": [PROGRAM, STATE], "client": name}


def _range(run: TrainedRun) -> dict[str, Any]:
    """From where to where pixels go: bytes, or shares of one."""
    if run.scaling.kind != "pixels":
        return {}
    return {"range": [0, 255] if run.input_type == torch.uint8 else [0, 1]}


def _program(model: ClientModel, example: torch.Tensor) -> torch.export.ExportedProgram:
    """The model as a program for any number of records; nothing of the example stays in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sizes = {"x": {0: torch.export.Dim("records", min=1)}}
            program = torch.export.export(model, (example,), dynamic_shapes=sizes)
    except Exception as error:  # a model of the user's may do what no program can
        raise FedfluxError(f"this model cannot be exported by torch.export ({in_words(error)})") from error
    program._example_inputs = None
    return program
