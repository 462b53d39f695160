"""A run's models, its extractor and its clusters' densities as ONNX graphs, each checked against torch.

The parts of a graph are torch's own exporter's; what it makes must give torch's numbers on random inputs.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.descriptors.privacy.release import directions
from fedflux.descriptors.queries import AskDescriptor
from fedflux.errors import FedfluxError
from fedflux.library.module import ClientModel
from fedflux.plugins import in_words
from fedflux.serve.graphs import Graph
from fedflux.serve.inputs import InputForm

OPSET = 17
TOLERANCE = 1e-4
"""By how much a graph's numbers may differ from torch's, as a share of the largest."""
TRIED = 5
"""Random records that a graph is tried with."""


class ExtractorModel(nn.Module):
    """Inputs to reduced latents: scaling, the reference model's encoder, and the projector in double precision."""

    def __init__(self, reference: ClientModel, described: AskDescriptor) -> None:
        super().__init__()
        self.reference = reference
        self.released = described.released
        self.register_buffer("mean", torch.as_tensor(described.projector.mean))
        self.register_buffer("components", torch.as_tensor(described.projector.components))

    def forward(self, x: Tensor) -> Tensor:
        """One row a record."""
        latents = self.reference.models[0].encode(self.reference.scaled(x))  # type: ignore[operator]
        found: Tensor = (latents.double() - self.get_buffer("mean")) @ self.get_buffer("components").T
        return directions(found) if self.released else found


class DensitiesModel(nn.Module):
    """Reduced latents to log N(z; μ_mu, v_mu Σ_mu), records × clusters × classes, as `ClassMixtures.densities`."""

    def __init__(self, mixtures: ClassMixtures) -> None:
        super().__init__()
        centre, whitening, counted, constant = mixtures.tables()
        for name, values in (("centre", centre), ("whitening", whitening), ("counted", counted), ("base", constant)):
            self.register_buffer(name, torch.as_tensor(values.astype(np.float64)))

    def forward(self, latents: Tensor) -> Tensor:
        """In double precision, which costs nothing for so few numbers."""
        away = latents[None] - self.get_buffer("centre")[:, None]
        white = away @ self.get_buffer("whitening").transpose(1, 2)
        products = (white[..., :, None] * white[..., None, :]).flatten(2)
        seen = torch.cat([products, white, torch.ones_like(white[..., :1])], dim=2)
        found: Tensor = -0.5 * (seen @ self.get_buffer("counted")) + self.get_buffer("base").T[:, None]
        return found.permute(1, 2, 0)


def model_graph(model: ClientModel, form: InputForm) -> bytes:
    """Records to a row of scores each."""
    return _graph(model, _random(form), "scores")


def extractor_graph(model: ExtractorModel, form: InputForm) -> bytes:
    """Records to reduced latents."""
    return _graph(model, _random(form), "latents")


def densities_graph(mixtures: ClassMixtures) -> bytes:
    """Reduced latents to log-densities."""
    example = np.random.default_rng(0).normal(size=(TRIED, mixtures.centre.shape[1]))
    return _graph(DensitiesModel(mixtures), example + mixtures.centre.mean(axis=0), "densities")


def _random(form: InputForm) -> NDArray[np.generic]:
    rng = np.random.default_rng(0)
    if form.kind == "integers":
        return rng.integers(0, 2, (TRIED, *form.shape))
    return rng.random((TRIED, *form.shape)).astype(form.dtype)


def _graph(model: nn.Module, example: NDArray[np.generic], output: str) -> bytes:
    """The graph for any number of records; refused where onnxruntime does not give torch's numbers."""
    if not _have_onnx():
        raise FedfluxError("ONNX graphs are written with onnx: pip install 'fedflux[serve]'")
    model, inputs = model.eval().cpu(), torch.as_tensor(example)
    out: Any = BytesIO()
    sizes = {"x": {0: "records"}, output: {0: "records"}}
    try:
        with _quietly(), torch.no_grad():
            # traced: torch's newer exporter needs another package, takes seconds a model, and no hooks
            torch.onnx.export(
                model,
                (inputs[:2],),
                out,
                dynamo=False,
                input_names=["x"],
                output_names=[output],
                dynamic_axes=sizes,
                opset_version=OPSET,
            )
            expected = model(inputs).numpy()
    except Exception as error:  # a model of the user's may do what no graph can
        raise FedfluxError(f"this model cannot be exported to ONNX ({in_words(error)})") from error
    found = Graph.of(out.getvalue(), "the export", output)(example)
    apart = float(np.abs(found - expected).max())
    if not apart <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise FedfluxError(f"as an ONNX graph this model gives other {output}: they are off by {apart:.2g}")
    content: bytes = out.getvalue()
    return content


def _have_onnx() -> bool:
    try:
        import onnx  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's notes."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
