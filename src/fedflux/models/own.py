"""A model handed in from Python: a function, a class or a module, told what its data are like."""

import inspect
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any

from torch import nn

from fedflux.errors import FedfluxError
from fedflux.plugins import import_named, in_words, source_digest

ORDER = ("input_shape", "classes")
"""What a function that makes models is told, by name or in this order, as far as it takes it."""


@dataclass(frozen=True, eq=False)
class OwnModel:
    """How a model of the user's is made; two of one digest are made alike."""

    make: Callable[[tuple[int, ...], int, int], nn.Module]
    """(input shape, classes, index): other indices draw other weights."""
    name: str
    digest: str
    travels: bool
    """Whether another process can make it."""

    @staticmethod
    def of(thing: object) -> "OwnModel":
        """From a module, or from a class or function that makes one."""
        kind = type(thing).__name__
        if isinstance(thing, nn.Module):
            weights = sha256()
            for name, tensor in thing.state_dict().items():
                weights.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
                weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            digest = sha256(f"{thing}{weights.hexdigest()}{source_of(type(thing))}".encode()).hexdigest()[:16]
            return OwnModel(Copies(thing), kind, digest, sendable(thing))
        if not callable(thing):
            raise FedfluxError(f"model: {kind} is no model; give an nn.Module, a class, a function or a name")
        name = str(getattr(thing, "__qualname__", kind))
        return OwnModel(Factory(thing), name, source_of(thing), importable(thing))

    @property
    def code(self) -> dict[str, str | None]:
        """Where its code lies, None where nobody finds it by a path, and a digest of how it is written."""
        if isinstance(self.make, Copies):
            return {"path": None, "source": source_of(type(self.make.module))}
        assert isinstance(self.make, Factory)
        thing = self.make.thing
        named = self.travels and "." not in thing.__qualname__
        return {"path": f"{thing.__module__}:{thing.__qualname__}" if named else None, "source": source_of(thing)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled only towards workers of the same machine, and only where they can make it."""
        if not self.travels:
            raise FedfluxError(f"model {self.name} cannot be made in another process: define it in a module of its own")
        return OwnModel, (self.make, self.name, self.digest, self.travels)


@dataclass(frozen=True, eq=False)
class Factory:
    """A class or function, called with what it takes of input shape and classes."""

    thing: Callable[..., Any]

    def __call__(self, input_shape: tuple[int, ...], classes: int, index: int) -> nn.Module:
        """A model with fresh weights."""
        made: nn.Module = called(self.thing, input_shape, classes)
        return made


@dataclass(frozen=True, eq=False)
class Copies:
    """A module as it was given; further ones are drawn anew, layer by layer."""

    module: nn.Module

    def __call__(self, input_shape: tuple[int, ...], classes: int, index: int) -> nn.Module:
        """The given weights first, then other ones."""
        copied = deepcopy(self.module).cpu()
        if index:
            for layer in copied.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        return copied


def called(thing: Callable[..., Any], input_shape: tuple[int, ...], classes: int) -> Any:
    """What a class or function makes when it is told as much as it takes: both, by name or in order, or nothing."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return thing(input_shape, classes)
    told = dict(zip(ORDER, (input_shape, classes), strict=True))
    named = {one.name: told[one.name] for one in parameters if one.name in told}
    if named:
        return thing(**named)
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in places if one.default is one.empty]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return thing(input_shape, classes) if len(needed) == 2 or several else thing()


def importable(thing: Any) -> bool:
    """Whether another process finds the same thing under its module and name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__", "__mp_main__") or "<" in name:
        return False
    try:
        found: Any = import_module(str(module))
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # whatever goes wrong here goes wrong there
        return False
    return found is thing


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, some: bytes | bytearray | memoryview) -> int:
        """Only how much it was."""
        return memoryview(some).nbytes


def sendable(module: nn.Module) -> bool:
    """Whether another process can be sent a module: it finds the classes of all parts, and nothing is in the way."""
    if not all(importable(kind) for kind in {type(part) for part in module.modules()}):
        return False
    try:
        pickle.Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(module)
    except Exception:  # what a module holds may fail in any way: functions without a name, locks, open files
        return False
    return True


def source_of(thing: Any) -> str:
    """A digest of how a class or function is written: of its file, of its lines, or of its compiled code."""
    try:
        return sha256(inspect.getsource(thing).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return source_digest(thing)


def code_at(name: str) -> dict[str, str | None] | None:
    """The same of a model that is named by its path; None for any other, and where there is no such thing."""
    if ":" not in name:
        return None
    try:
        return {"path": name, "source": source_of(import_named(name, "model"))}
    except FedfluxError:  # whoever builds the model says what is wrong with it
        return None


def built(model: OwnModel, input_shape: tuple[int, ...], classes: int, index: int) -> nn.Module:
    """The model, or in one line why there is none."""
    try:
        return model.make(input_shape, classes, index)
    except FedfluxError:
        raise
    except Exception as error:  # a model of the user's may fail in any way
        told = f"input_shape={input_shape}, classes={classes}"
        raise FedfluxError(f"model {model.name} cannot be made from {told}: {in_words(error)}") from error
