"""What a finished run leaves for others to read; the result comes last, since it says that the rest is there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedflux.algorithms import Algorithm
from fedflux.data import Federation
from fedflux.engine import Engine, Stack
from fedflux.files import as_json, write_bytes, write_npz, written_whole
from fedflux.runs.config import RunConfig
from fedflux.runs.storage.digests import save_digests
from fedflux.runs.storage.folder import (
    DESCRIPTOR_FILE,
    FINISHED,
    KEPT_AS_WRITTEN,
    MODEL_FILES,
    PERSONAL_FILE,
    RESULT_FILE,
    SAMPLES_FILE,
    record_event,
)
from fedflux.runs.storage.samples import keeps_samples, sample_images
from fedflux.runs.storage.trained import Form, save_trained


def save_finished(
    folder: Path,
    config: RunConfig,
    algorithm: Algorithm[Any],
    engine: Engine,
    state: Any,
    result: dict[str, Any],
    federation: Federation,
    simulated: bool,
) -> None:
    """Descriptors, sample images, models and the last state, then the result; `simulated` clients live here."""
    described = algorithm.described(state)
    if described is not None:
        arrays = {**described.sent, "clients": described.clients, "labels": described.labels}
        if federation.truth is not None:
            arrays["truth"] = federation.truth[described.clients]
        write_npz(folder / DESCRIPTOR_FILE, arrays)
    if simulated and federation.dataset.holds_images and keeps_samples(config):
        write_npz(folder / SAMPLES_FILE, sample_images(federation, algorithm.assignment(state)))
    for name, models in algorithm.models(state).items():
        _save_models(folder / MODEL_FILES.get(name, f"{name}.safetensors"), models)
    kept = engine.kept()
    personal = [PERSONAL_FILE.format(slot=slot) for slot in kept.models]
    for name, (slot, models) in zip(personal, kept.models.items(), strict=True):
        _save_models(folder / name, models, kept.clients[slot].tolist())
    scaling = federation.dataset.scaling
    save_trained(folder, state, algorithm.states, Form.of(federation, scaling))
    content = as_json(result)
    record_event(folder, FINISHED)
    save_digests(folder, [*KEPT_AS_WRITTEN, *personal], content)
    write_bytes(folder / RESULT_FILE, content)


def _save_models(path: Path, models: Stack, clients: Sequence[int] | None = None) -> None:
    told = None if clients is None else {"clients": ",".join(map(str, clients))}
    with written_whole(path) as handle:
        handle.write(save({key: tensor.contiguous().cpu() for key, tensor in models.tensors.items()}, told))
