"""Graphs give torch's numbers, for every model that there is and any number of records."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from fedflux.data.scaling import PIXELS
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.queries import AskDescriptor
from fedflux.errors import FedfluxError
from fedflux.library.module import ClientModel
from fedflux.models import build_model
from fedflux.serve.graphs import Graph
from fedflux.serve.inputs import InputForm
from fedflux.serve.onnx_models import ExtractorModel, extractor_graph, model_graph

SHAPES = {"mlp": (1, 8, 8), "lenet5": (1, 28, 28), "resnet9": (3, 32, 32)}


def made(name: str, channels: int | None = None) -> ClientModel:
    shape = SHAPES[name] if channels is None else (channels, *SHAPES[name][1:])
    return ClientModel([build_model(name, shape, 10, 0, 0, False)], [1.0], PIXELS, channels).eval()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 33])
def test_scores_and_latents_are_those_of_torch(name: str, count: int) -> None:
    model, form = made(name), InputForm(SHAPES[name], "pixels")
    x = torch.rand(count, *SHAPES[name])
    encoder: Any = model.models[0]
    width = encoder.encode(model.scaled(x)).shape[1]
    rng = np.random.default_rng(0)
    projector = Projector(rng.normal(size=width), rng.normal(size=(10, width)) / width**0.5)
    extractor = ExtractorModel(model, AskDescriptor(10, 10, 200, None, given=projector)).eval()
    with torch.no_grad():
        for module, content in ((model, model_graph(model, form)), (extractor, extractor_graph(extractor, form))):
            expected = module(x).numpy()
            assert Graph.of(content, "here", name)(x.numpy()) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_grey_images_are_given_their_channels() -> None:
    model = made("lenet5", channels=3)
    x = torch.rand(4, 1, 28, 28)
    graph = Graph.of(model_graph(model, InputForm((1, 28, 28), "pixels")), "here", "m")
    with torch.no_grad():
        assert graph(x.numpy()) == pytest.approx(model(x).numpy(), abs=1e-5)


class Fickle(nn.Module):
    """A model that treats few records otherwise, which no graph can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x)
        return scores if len(x) < 3 else -scores


def test_a_model_that_is_no_graph_is_refused() -> None:
    with pytest.raises(FedfluxError, match="other scores"):
        model_graph(ClientModel([Fickle()], [1.0], PIXELS, None), InputForm((4,), "pixels"))


def test_without_onnx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FedfluxError, match=r"pip install 'fedflux\[serve\]'"):
        model_graph(made("mlp"), InputForm((1, 8, 8), "pixels"))


def test_a_graph_reads_no_file_of_whoever_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    table = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "secret"), ("offset", "0"), ("length", "256")):
        table.external_data.add(key=key, value=value)
    x, y = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"]), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([helper.make_node("Gather", ["w", "x"], ["y"])], "g", [x], [y], [table])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(FedfluxError, match="no graph that onnxruntime runs"):
        Graph.of(content, "here", "g")
