"""A bundle from a trained run: `fedflux export RUN`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors

from fedflux.algorithms.flux.answers import FluxAnswers, by_size
from fedflux.algorithms.flux.sharing.branches import GENERAL
from fedflux.algorithms.flux.state import Clustered
from fedflux.clustering.placement.misfit import CANDIDATES
from fedflux.clustering.placement.mixtures import STEPS
from fedflux.clustering.placement.offer import CUT, DIGITS, Offer
from fedflux.clustering.placement.posterior import LUCK
from fedflux.errors import FedfluxError
from fedflux.files import as_json
from fedflux.library.trained import TrainedRun
from fedflux.runs.storage.trained import Form
from fedflux.serve.bundle import CARD, DENSITIES, EXTRACTOR, MIXTURES, MOMENTS
from fedflux.serve.container import write_files
from fedflux.serve.inputs import InputForm
from fedflux.serve.model_card import model_card
from fedflux.serve.onnx_models import ExtractorModel, densities_graph, extractor_graph, model_graph
from fedflux.serve.signing import private_key
from fedflux.version import __version__

README = "README.md"
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Contents:
    """What of a run goes into its bundle."""

    run: TrainedRun
    state: Clustered
    method: FluxAnswers[Any]
    kept: Index
    """The clusters that are offered."""
    left_out: Index
    offer: Offer
    parts: NDArray[np.float64]
    """(clusters, rows): what every model has in the answers to members."""
    rows: Index
    """The models that are heard."""
    usual: NDArray[np.float64]

    @staticmethod
    def of(run: TrainedRun, min_members: int | None) -> "Contents":
        """What there is; runs that place nobody by what data look like make no bundle."""
        state, method = run.state, run.method
        if not isinstance(method, FluxAnswers):
            words = "does not place clients by what their data look like; export --client NAME writes models"
            raise FedfluxError(f"a bundle is made of a FLUX run: {run.config.algorithm} {words}")
        if not isinstance(state, Clustered):
            raise FedfluxError("this run ended before clusters were found: there is nothing to place clients with")
        if method.settings.assignment != "mixture":
            how = method.settings.assignment
            raise FedfluxError(
                f"a bundle places clients by class mixtures; this run by --assignment {how}: run it anew"
            )
        least = max(method.settings.min_members, min_members or 0)
        offered = state.holders >= least
        usual = by_size(state.sizes, offered)
        if usual is None:
            raise FedfluxError(f"every cluster has fewer than {least} members: there is none to place clients in")
        kept = np.flatnonzero(offered)
        branches = state.branches
        placed = np.eye(branches.clusters)[kept]
        parts = branches.weights(placed, state.parts, None if branches.general is None else np.zeros(len(kept)))
        heard = np.asarray(parts.any(axis=0), dtype=np.bool_)
        if branches.general is not None:
            heard[branches.begins[GENERAL]] = True
        rows = np.flatnonzero(heard)
        offer = state.offer.only(kept)
        return Contents(run, state, method, kept, np.flatnonzero(~offered), offer, parts[:, rows], rows, usual[kept])

    @property
    def names(self) -> list[str]:
        """The ids of the models: their branch, and the number of their cluster."""
        return [self._name(int(row)) for row in self.rows]

    def _name(self, row: int) -> str:
        begins = self.state.branches.begins
        branch = max((name for name in begins if begins[name] <= row), key=lambda name: begins[name])
        return branch if branch == GENERAL else f"{branch}-{row - begins[branch]}"

    def clusters(self) -> list[dict[str, Any]]:
        """How the clusters on offer are called, and how many clients are behind each; not which."""
        alone, usual = self.state.holders <= 1, self.offer.usual.calibrated
        return [
            {
                "number": int(m),
                "name": f"cluster-{m}",
                "members": int(self.state.sizes[m]),
                "calibrated": bool(usual and not alone[m]),
            }
            for m in self.kept
        ]

    def card(self, form: InputForm) -> dict[str, Any]:
        """All that is no array."""
        run, settings, offer, result = self.run, self.method.settings, self.offer, self.run.result
        told = ("known", "test", "unseen", "worst", "clusters_true", "ari")
        asked = {name: getattr(run.config, name) for name in ("algorithm", "dataset", "shift", "level")}
        general = self.state.branches.general
        return {
            "fedflux": __version__,
            "run": {**asked, **{name: result.get(name) for name in told}},
            "shift_found": sorted({str(pair["shift"]) for pair in result.get("why") or ()} - {"none"}),
            "clients": len(run.clients),
            "class_names": list(run.class_names),
            "several_labels": run.form.several_labels,
            "score": result.get("score"),
            "clusters": self.clusters(),
            "left_out": len(self.left_out),
            "input": form.as_plain(),
            "scaling": run.scaling.as_plain(),
            "models": [{"id": name} for name in self.names],
            "placement": {
                "level": settings.novelty_level,
                "temperature": asdict(offer.temperature),
                "usual": asdict(offer.usual),
                "constants": {"luck": LUCK, "cut": CUT, "digits": DIGITS, "candidates": CANDIDATES, "steps": STEPS},
            },
            "answering": {
                "general": None if general is None else GENERAL,
                "share": self.state.share,
                "novel_to_usual": settings.novel == "global" and "novel" in self.method.reads,
            },
            "epsilon": result.get("epsilon"),
        }

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The class moments of the clusters on offer, and what models have in answers."""
        mixtures = {name: getattr(self.offer.mixtures, name) for name in MIXTURES}
        base = self.offer.mixtures.tables()[3]
        found = {**mixtures, "base": base, "prior": self.offer.prior, "parts": self.parts, "usual": self.usual}
        return {name: np.ascontiguousarray(values) for name, values in found.items()}


def input_form(form: Form) -> InputForm:
    """What the bundle's graphs take."""
    kinds: dict[str, Literal["pixels", "integers", "wide", "plain"]] = {"pixels": "pixels", "standardise": "wide"}
    kind = "integers" if form.integers else kinds.get(str(form.scaling["kind"]), "plain")
    return InputForm(form.model_shape, kind, form.model_shape != form.input_shape)


def bundle_contents(run: TrainedRun, min_members: int | None = None) -> dict[str, bytes]:
    """Every file of a run's bundle."""
    told, form = Contents.of(run, min_members), input_form(run.form)
    extractor = told.state.extractor
    reference = ExtractorModel(run.module(extractor.reference.row(0)), extractor.question)
    files = {
        MOMENTS: save_arrays(told.arrays()),
        f"{EXTRACTOR}.onnx": extractor_graph(reference, form),
        f"{EXTRACTOR}.safetensors": _tensors(reference.state_dict()),
        f"{DENSITIES}.onnx": densities_graph(told.offer.mixtures),
    }
    for name, row in zip(told.names, told.rows, strict=True):
        model = run.module(told.state.answering.row(int(row)))
        files[f"models/{name}.onnx"] = model_graph(model, form)
        files[f"models/{name}.safetensors"] = _tensors(model.models[0].state_dict())
    card = told.card(form)
    return {CARD: as_json(card), README: model_card(card, run.result).encode(), **files}


def _tensors(state: Mapping[str, Any]) -> bytes:
    return save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()})


def export_bundle(
    run: TrainedRun, out: Path, min_members: int | None = None, sign: Path | None = None
) -> dict[str, Any]:
    """Write a run's bundle to a folder, or to one file where the name ends with .zip; the answer says what is in it."""
    key = None if sign is None else private_key(sign)
    contents = bundle_contents(run, min_members)
    digest = write_files(out, contents, key)
    models = [Path(name).stem for name in contents if name.startswith("models/") and name.endswith(".onnx")]
    return {"path": str(out), "models": models, "digest": digest, "signed": key is not None}
