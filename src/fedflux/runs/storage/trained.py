"""What a finished run leaves for later: its last state, and what models must be told of the data.

`trained.json` holds the outline and `trained.safetensors` the tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedflux.data import Federation
from fedflux.data.scaling import Scaling
from fedflux.data.tasks import ONE_LABEL, SEVERAL_LABELS, Task
from fedflux.engine import Kept, Stack
from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json, written_whole
from fedflux.runs.storage.digests import FORMAT, newer
from fedflux.runs.storage.folder import PERSONAL_FILE, TRAINED_FILE, TRAINED_TENSORS
from fedflux.savable import put_together, take_apart


@dataclass(frozen=True)
class Form:
    """What models, and whoever answers with them, must know of the data: no example, and nothing of any client."""

    input_shape: tuple[int, ...]
    """Of one input as clients have it."""
    channels: int | None
    """How many channels models are given, where grey images are repeated to more."""
    classes: int
    kind: str
    """The kind of number that inputs are: `u` bytes, `i` integers, `f` floating point."""
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    scaling: Mapping[str, Any]
    true_clusters: int | None
    """How many clusters there are, where the data says so: some methods are told."""
    feature_names: tuple[str, ...] | None = None
    """What the columns of a table are called."""
    several_labels: bool = False
    """Whether a record may have several labels."""

    @property
    def task(self) -> Task:
        """How answers are read."""
        return SEVERAL_LABELS if self.several_labels else ONE_LABEL

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of one input as models see it."""
        return self.input_shape if self.channels is None else (self.channels, *self.input_shape[1:])

    @property
    def integers(self) -> bool:
        """Whether models are given integers, such as token ids."""
        return self.scaling["kind"] == "none" and self.kind in "ui"

    @staticmethod
    def of(federation: Federation, scaling: Scaling) -> "Form":
        """Of these clients."""
        dataset, truth = federation.dataset, federation.truth
        return Form(
            dataset.input_shape,
            federation.channels,
            federation.classes,
            "u" if dataset.train.x.dtype == np.uint8 else dataset.train.x.dtype.kind.replace("u", "i"),
            federation.class_names or tuple(map(str, range(federation.classes))),
            federation.names or tuple(map(str, range(len(federation)))),
            scaling.as_plain(),
            None if truth is None else len(np.unique(truth)),
            feature_names=dataset.feature_names,
            several_labels=federation.task.several,
        )

    @staticmethod
    def read(told: Mapping[str, Any]) -> "Form":
        """From plain values."""
        kept = {one.name: told[one.name] for one in fields(Form) if one.name in told}
        lists = {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
        return Form(**{**kept, **lists})


@dataclass(frozen=True, eq=False)
class Trained:
    """A method's last state with the models that clients keep, and the form of their data."""

    state: Any
    kept: Kept
    form: Form


def save_trained(folder: Path, state: Any, states: Sequence[type], form: Form) -> None:
    """Write the state; personal models have files of their own already."""
    tensors, outline = take_apart(state)
    with written_whole(folder / TRAINED_TENSORS) as handle:
        handle.write(save(tensors))
    told = {"format": FORMAT, "state": states.index(type(state)), "outline": outline, "form": asdict(form)}
    write_json(folder / TRAINED_FILE, told)


def load_trained(folder: Path, states: Sequence[type], device: str, files: Iterable[str]) -> Trained:
    """The state that `save_trained` wrote, with the clients' own models as far as they are among the run's files."""
    told = read_object(folder / TRAINED_FILE)
    if told is None:
        raise FedfluxError(f"{folder / TRAINED_FILE} is missing or damaged; run it again")
    if told.get("format") != FORMAT:
        raise newer(folder, told.get("format"))
    try:
        tensors = load((folder / TRAINED_TENSORS).read_bytes())
        state = put_together(states[told["state"]], tensors, told["outline"], device)
        form = Form.read(told["form"])
        return Trained(state, _kept(folder, device, files), form)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        words = f"does not hold what this version of its method keeps ({type(error).__name__}: {error})"
        raise FedfluxError(f"{folder / TRAINED_FILE} {words}; load it with the version that made it") from error


def _kept(folder: Path, device: str, files: Iterable[str]) -> Kept:
    clients, models = {}, {}
    before, after = PERSONAL_FILE.split("{slot}")
    for name in sorted(name for name in files if name.startswith(before)):
        slot = name.removeprefix(before).removesuffix(after)
        with safe_open(folder / name, framework="pt", device=device) as file:
            clients[slot] = np.array([int(one) for one in file.metadata()["clients"].split(",")], dtype=np.int64)
            models[slot] = Stack({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return Kept(clients, models)
