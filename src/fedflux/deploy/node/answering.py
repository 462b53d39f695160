"""What a node does with its data when it is asked: the core's engine on the one client that lives here.

What it may be asked is the node's own decision: its configuration says so, not the run's.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from json import dumps, loads
from pathlib import Path
from typing import Any

import numpy as np

from fedflux.data import Cohort
from fedflux.data.holding import NothingToTellError
from fedflux.deploy.node.arrays import digest, model_arrays, parameters
from fedflux.deploy.node.data import UNNUMBERED, NodeData, load_node_data
from fedflux.deploy.node.ledger import Ledger
from fedflux.deploy.node.memory import Memory, OnDisk, put_slot, slot_rounds, trim_models
from fedflux.deploy.node.requests import Ask, Asked, CopySlot, Evaluate, HandOut, Hello, Mixture, Sent, Train
from fedflux.engine import Kept, LoopEngine, Predictor, Recipe, SimulatedEngine, Stack, pick_device
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

CHOICE = "placement"
"""The query that tells which cluster a node's images are from, and nothing else."""
WITHOUT_LABELS = (CHOICE, "unlabelled-descriptor", "subspace")
"""The queries that a node without labels answers."""
SPLITS = "train, validation, test"
MAX_DELTA = 1e-5
"""The largest δ of a node with a `max-epsilon`, unless its `max-delta` says otherwise."""


class MissingModelsError(Exception):
    """Models that a question names were neither sent nor held here."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What goes back: arrays or models, what is told of a preparation, and plain values."""

    arrays: Arrays = field(default_factory=dict)
    models: Sequence[Arrays] = ()
    told: Arrays = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LocalNode:
    """One node's configuration, data and memory, and the method of the run."""

    config: Mapping[str, Any]
    data: NodeData
    memory: Memory
    algorithm: str

    @staticmethod
    def of(config: Mapping[str, Any], run_config: Mapping[str, Any], memory: Memory) -> "LocalNode":
        """From a node's own configuration, which may pin the data function, and the run's."""
        name = str(config.get("data") or run_config.get("data") or "fedflux.deploy.flower.simulated:data")
        data = _data(name, tuple(sorted(config.items())), tuple(sorted(run_config.items())))
        return LocalNode(config, data, memory, str(run_config.get("algorithm") or "flux"))

    def answer(self, request: Any, models: Mapping[str, Arrays]) -> Answer:
        """The answer to a request, with the models that came with it, as far as the configuration allows it."""
        self._allow(request)
        for name, arrays in models.items():
            if digest(arrays) != name:
                raise FedfluxError("a model that was sent is not the one that it is called")
            self.memory[f"model/{name}"] = arrays
        answers: dict[type, Any] = {Hello: self.introduce, Train: self.train, Evaluate: self.evaluate, Ask: self.ask}
        answers |= {CopySlot: self.copy_slot, HandOut: self.hand_out}
        found: Answer = answers[type(request)](request)
        return found

    @property
    def labelled(self) -> bool:
        """Whether this node's labels may be used; `labels=false` in its configuration says no."""
        return bool(self.config.get("labels", True))

    def _allow(self, request: Any) -> None:
        """Refuse what the node's configuration does not allow."""
        inside = [getattr(request, name, None) for name in ("rule", "preparation", "query")]
        inside += [mixture.adaptation for mixture in getattr(request, "mixtures", ())]
        names = [one.name for one in inside if one is not None]
        names += ["train"] if isinstance(request, Train) else ["evaluate"] if isinstance(request, Evaluate) else []
        allowed = _listed(self.config.get("allow", ""))
        for name in names:
            if allowed and name not in allowed:
                raise FedfluxError(f"this node does not allow '{name}': it allows {', '.join(allowed)}")
        if "max-epsilon" in self.config and isinstance(request, Train) and request.preparation is not None:
            told = request.preparation.name
            raise FedfluxError(f"this node has a max-epsilon: it does not prepare '{told}', which tells exact sums")
        images = isinstance(request, Ask) and request.query.name in WITHOUT_LABELS and request.features is not None
        if not (self.labelled or images or isinstance(request, Hello | HandOut)):
            answered = ", ".join(sorted(WITHOUT_LABELS))
            raise FedfluxError(f"this node has no labels: it answers {answered}; not {', '.join(names)}")

    def introduce(self, hello: Hello) -> Answer:
        """Who this node is and what it holds; models of rounds that will be done again are forgotten."""
        for made, entry in slot_rounds(self.memory, hello.run):
            if made >= hello.round:
                del self.memory[entry]
        federation, client = self.data.federation, self.data.client
        stored = [federation.stored(max(client, 0), split) for split in ("train", "validation", "test")]
        return Answer(
            about={
                "client": client,
                "labels": self.labelled,
                "stored": stored if self.labelled else [0, 0, stored[2]],
                "copies": federation.copies("train"),
                "input-shape": list(federation.input_shape),
                "classes": federation.classes,
                "scale": dumps(federation.dataset.scaling.as_plain()),  # a message holds no nested values
                "integers": federation.integers,
                "several": federation.task.several,
                "keeps": bool(self.config.get("model-dir")),
            }
        )

    def train(self, request: Train) -> Answer:
        """Local training, from models that were sent or are this node's own; an unchanged model is named, not sent."""
        asked, cohort = request.asked, self._cohort(request.asked)
        engine = self._engine(asked, {slot for job in request.jobs for slot in (*job.own, *job.keep) if slot})
        start = self._stack(request.models, request.begins_from(set(engine.kept().models)), engine)
        rule, preparation = self._open(request.rule), self._open(request.preparation)
        extras = {asked.client: request.extras}
        trained = engine.train(start, cohort, request.jobs, request.training, request.key, rule, extras, preparation)
        kept = engine.kept().models
        for slot in sorted({slot for job in request.jobs for slot in job.keep if slot}):
            put_slot(self.memory, asked.run, slot, request.key.round, model_arrays(kept[slot].row(0)))
        rows = [model_arrays(trained.models.row(row)) for row in range(len(trained.models))]
        same = [digest(row) if digest(row) in request.models else "" for row in rows]
        examples = cohort.federation.size(asked.client, request.training.split)
        changed = [row for row, name in zip(rows, same, strict=True) if not name]
        about = {"examples": examples, **({"same": same} if any(same) else {})}
        return Answer(models=changed, told=trained.told.get(asked.client, {}), about=about)

    def evaluate(self, request: Evaluate) -> Answer:
        """The accuracy of every mixture, NaN where the part is empty."""
        engine, predictors = self._predictors(request.asked, request.models, request.mixtures)
        scores = engine.evaluate(predictors, self._cohort(request.asked), request.split)
        return Answer({"score": scores.values[:, 0]})

    def ask(self, request: Ask) -> Answer:
        """A query's answer; a private one is charged first, and given again where it was given before."""
        query = self._open(request.query)
        privacy = getattr(query, "privacy", None)
        self._afford(request, query, privacy)
        if privacy is None:
            return Answer(self._asked(request, query))
        asked, federation, most = request.asked, self.data.federation, self.config.get("max-epsilon")
        changes = privacy.releases > 1 or federation.at(asked.round) is not federation
        when = f"{asked.round if changes else 'any'} {asked.part} {asked.most}"
        operation = digest(request.query.arrays, f"{request.query.name} {request.query.outline} {request.features}")
        key = digest({}, f"{asked.run} {when} {operation} {' '.join(request.models)}")
        ledger = None
        if isinstance(self.memory, OnDisk):
            ledger = Ledger(self.memory.folder, None if most is None else float(most))
        elif most is not None:
            raise FedfluxError("max-epsilon needs a state-dir, where the node keeps count of what it spent")
        with nullcontext() if ledger is None else ledger.alone():
            released = self.memory.get(f"release/{key}")
            if released is None:
                if ledger is not None:
                    told = getattr(query, "charges", None) or {str(one.split) for one in query.passes()}
                    ledger.charge(asked.run, privacy, key, frozenset(told))
                released = self.memory[f"release/{key}"] = self._asked(request, query)
        return Answer(released)

    def _afford(self, request: Ask, query: Any, privacy: Any) -> None:
        """Refuse what `max-epsilon` and `max-delta` do not cover; the latter counts where one of them is set.

        The choice of a cluster has no noise and is answered all the same, by the images of the test part alone: like
        accuracies it is outside of what ε covers, and `allow` is where a node says that it must not leave.
        """
        name = request.query.name
        if "max-epsilon" in self.config and name == CHOICE:
            if request.features != "test" or any(one.split != "test" or one.labelled for one in query.passes()):
                raise FedfluxError("this node has a max-epsilon: it chooses by the images of its test part alone")
        elif "max-epsilon" in self.config:
            if privacy is None:
                raise FedfluxError(f"this node has a max-epsilon: it answers '{name}' only with noise")
            if privacy.mechanism != "gaussian":  # the other's noise is as wide as the server says that data is
                raise FedfluxError(f"this node has a max-epsilon: its noise is gaussian, not '{privacy.mechanism}'")
        most = float(self.config.get("max-delta", MAX_DELTA))
        budget = "max-epsilon" in self.config or "max-delta" in self.config
        if budget and privacy is not None and not privacy.delta <= most:
            raise FedfluxError(f"δ would be {privacy.delta:g}, and this node's max-delta is {most:g}")

    def _asked(self, request: Ask, query: Any) -> Arrays:
        engine, cohort = self._engine(request.asked), self._cohort(request.asked)
        models = self._stack(request.models, set(request.models), engine) if request.models else None
        answers = engine.ask(query, cohort if request.features is None else cohort.features(request.features), models)
        if not len(answers):
            raise NothingToTellError(next(iter(answers.missing.values()), "it has nothing to tell"))
        return answers.arrays[0]

    def copy_slot(self, request: CopySlot) -> Answer:
        """Keep the model of one slot in another, too."""
        for made, entry in slot_rounds(self.memory, request.asked.run, request.source)[-1:]:
            put_slot(self.memory, request.asked.run, request.target, made, self.memory[entry])
        return Answer()

    def hand_out(self, request: HandOut) -> Answer:
        """Save what this node answers with for whoever uses it on this machine, in its `model-dir`."""
        from safetensors.torch import save

        from fedflux.files import write_json, written_whole

        engine, (predictor,) = self._predictors(request.asked, request.models, (request.mixture,))
        answering = engine.resolved(predictor, (request.asked.client,))
        stack, weights = answering.stack, answering.weights
        chosen = np.flatnonzero(weights[0]).tolist()
        files = ["model.safetensors"] if len(chosen) == 1 else [f"model-{k}.safetensors" for k in range(len(chosen))]
        held = {name: stack.row(row) for name, row in zip(files, chosen, strict=True)}
        told = {**loads(request.placed), "client": request.asked.client}
        told["weights"] = dict(zip(files, weights[0][chosen].tolist(), strict=True))
        if (adaptation := request.mixture.adaptation) is not None:
            held["adaptation.safetensors"] = parameters(adaptation.arrays)
            told["adaptation"] = {adaptation.name: loads(adaptation.outline)}
        folder = Path(str(self.config["model-dir"]))
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in held.items():
            with written_whole(folder / name) as handle:
                handle.write(save({key: tensor.contiguous() for key, tensor in tensors.items()}))
        write_json(folder / "model.json", told)
        return Answer()

    def _predictors(
        self, asked: Asked, models: Sequence[str], mixtures: Sequence[Mixture]
    ) -> tuple[SimulatedEngine, list[Predictor]]:
        """What this client's rows of predictors are here; a stack has a model, even if nobody answers with it."""
        engine = self._engine(asked, {slot for mixture in mixtures for slot in mixture.slots})
        stack, blank = self._stack(models, set(models), engine), [] if models else [0.0]
        found = []
        for one in mixtures:
            weights = np.array([[*blank, *one.weights]])
            mixed = stack
            if one.layers:  # the other layers are those of one model, which goes alone with them
                mixed, weights = stack.take([one.base]), weights[:, [one.base, *range(len(stack), weights.shape[1])]]
            adaptation = self._open(one.adaptation)
            found.append(Predictor(mixed, weights, adaptation, None, one.slots, one.blended, one.layers))
        return engine, found

    def _cohort(self, asked: Asked) -> Cohort:
        if self.data.client not in (UNNUMBERED, asked.client):
            raise FedfluxError(f"this node is client {self.data.client}, not {asked.client}")
        return asked.cohort(self.data.federation)

    def _open(self, sent: Sent | None) -> Any:
        """An operation of the run's method; what registers it is imported only now."""
        if sent is None:
            return None
        from fedflux.algorithms.registry import find_algorithm

        find_algorithm(self.algorithm)
        return sent.open()

    def _engine(self, asked: Asked, slots: set[str] | frozenset[str] = frozenset()) -> SimulatedEngine:
        """The core's engine, with these slots of the client in it as far as they are filled."""
        federation, device = self.data.federation, str(self.config.get("device", "cpu"))
        recipe = Recipe(
            asked.model, federation.input_shape, federation.classes, 0, federation.integers, federation.task
        )
        backend = _backend(recipe, federation.dataset.scaling.pixels, device)
        newest = {slot: slot_rounds(self.memory, asked.run, slot)[-1:] for slot in slots}
        held = {slot: parameters(self.memory[made[0][1]]) for slot, made in newest.items() if made}
        engine = SimulatedEngine(backend)
        clients = {slot: np.array([asked.client]) for slot in held}
        engine.restore(Kept(clients, {slot: Stack.join([params]) for slot, params in held.items()}))
        return engine

    def _stack(self, models: Sequence[str], needed: set[str], engine: SimulatedEngine) -> Stack:
        """The models of a request, in order; those that are not needed may be missing, and any will do for them."""
        found = {name: self.memory.get(f"model/{name}") for name in models}
        missing = [name for name in found if found[name] is None and name in needed]
        if missing:
            raise MissingModelsError(*missing)
        initial = engine.initial()
        trim_models(self.memory, len(found), initial.model_bytes())
        rows = [initial.row(0) if (held := found[name]) is None else parameters(held) for name in models]
        return Stack.join(rows) if rows else initial


def _listed(words: Any) -> list[str]:
    return [word.strip() for word in str(words).split(",") if word.strip()]


@lru_cache(maxsize=64)
def _data(name: str, node: tuple[tuple[str, Any], ...], run: tuple[tuple[str, Any], ...]) -> NodeData:
    """A node's data, loaded once a process."""
    config = dict(node)
    data = load_node_data(name, config, dict(run)).numbered(int(config.get("partition-id", UNNUMBERED)))
    return data.only(_listed(config.get("splits", SPLITS)))


@lru_cache(maxsize=8)
def _backend(recipe: Recipe, pixels: tuple[float, float] | None, device: str) -> LoopEngine:
    """The reference engine; its initial weights are never used, the server's are."""
    return LoopEngine(recipe.build(), pick_device(device), "fp32", pixels, recipe.task)
