"""What clients train: models by name, or any factory of the user's."""

from importlib import import_module

import torch
from torch import nn

from fedflux.errors import FedfluxError, unknown
from fedflux.models.lenet5 import LeNet5
from fedflux.models.mlp import MLP
from fedflux.models.own import OwnModel, built
from fedflux.models.protocol import Encoding, ModelFactory, NamedEncoder, as_encoding, check_model
from fedflux.models.resnet9 import ResNet9
from fedflux.plugins import current_folder_importable, find, in_words
from fedflux.streams import stream_seed

MODELS: dict[str, ModelFactory] = {"lenet5": LeNet5, "resnet9": ResNet9, "mlp": MLP}
GROUP = "fedflux.models"
"""Entry points by which packages offer models: factories of (input_shape, classes)."""
REVISIONS = {"resnet9": 2}
"""Models whose layers have changed, and how often: runs of different revisions give different numbers."""

__all__ = ["MLP", "MODELS", "Encoding", "LeNet5", "NamedEncoder", "OwnModel", "ResNet9", "build_model"]


def build_model(
    name: str | OwnModel, input_shape: tuple[int, ...], classes: int, seed: int, index: int = 0, integers: bool = False
) -> nn.Module:
    """A model with its initial weights; `name` is a known model, `package.module:factory`, or one handed in.

    Weights are drawn on the CPU from a seed of their own, with torch's global generator put back afterwards; each
    `index` draws other weights. A module of the user's is looked for in the current folder too, while the model is made
    and no longer.
    """
    if isinstance(name, OwnModel):
        own = name

        def make(shape: tuple[int, ...], count: int) -> nn.Module:
            return built(own, shape, count, index)

        return _built(make, own.name, input_shape, classes, seed, index, integers)
    known = MODELS.get(name) or (find(GROUP, name, "model") if ":" not in name else None)
    if known is not None:
        return _built(known, name, input_shape, classes, seed, index, integers)
    with current_folder_importable():
        return _built(_import_factory(name), name, input_shape, classes, seed, index, integers)


def _built(
    factory: ModelFactory,
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    index: int,
    integers: bool,
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "initial model", index))
        try:
            made = factory(input_shape, classes)
        except FedfluxError:
            raise
        except Exception as error:
            told = f"{input_shape}, {classes}"
            raise FedfluxError(f"--model {name} cannot be made from ({told}): {in_words(error)}") from error
        model = as_encoding(made)
        check_model(model, input_shape, classes, integers)
    return model


def _import_factory(name: str) -> ModelFactory:
    if ":" not in name:
        raise unknown("model", name, [*MODELS, "package.module:factory"])
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # a module of the user's may fail in any way
        raise FedfluxError(f"cannot import '{module_name}' for --model {name}: {in_words(error)}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise FedfluxError(f"'{module_name}' has no callable '{attribute}' for --model {name}")
    found: ModelFactory = factory
    return found
