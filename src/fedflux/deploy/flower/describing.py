"""The server's side of descriptors: bounds, then descriptors under them; late nodes; nodes without labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedflux.algorithms.flux.describe import Extractor
from fedflux.deploy.flower.checks import bounds_fault, descriptor_fault, first_fault, version_fault, wide_faults
from fedflux.deploy.flower.exchange import Exchange
from fedflux.deploy.flower.records import (
    ABOUT,
    BOUNDS,
    DESCRIPTOR,
    Arrays,
    bounds_arrays,
    completed,
    digest,
    pack,
    read_bounds,
    unpack,
)
from fedflux.deploy.flower.roster import Node
from fedflux.deploy.flower.settings import FlowerSettings
from fedflux.descriptors.bounds import Bounds, merge_bounds, scalar_bounds
from fedflux.descriptors.projector import fit_projector
from fedflux.engine.stack import Stack


@dataclass(frozen=True, eq=False)
class Described:
    """What a round of queries gave: the extractor, its version, and who sent which descriptor, in client order."""

    extractor: Extractor
    version: str
    clients: tuple[int, ...]
    descriptors: tuple[Arrays, ...]


def describe_all(
    exchange: Exchange, nodes: Sequence[Node], reference: Stack, width: int, settings: FlowerSettings
) -> Described | None:
    """Bounds of every node, merged and frozen, then everyone's descriptor; None where nobody answered.

    A refused node must leave no trace: where one is refused for its descriptor, the bounds are merged anew without it.
    """
    bounds = ask_bounds(exchange, nodes, reference, width)
    while bounds:
        extractor, version = fit(reference, list(bounds.values()), settings)
        answered = ask_descriptors(exchange, list(bounds), extractor, version, settings)
        remaining = {node: one for node, one in bounds.items() if node.client not in exchange.roster.refused}
        if len(remaining) == len(bounds):
            clients = tuple(node.client for node, _ in answered)
            found = Described(extractor, version, clients, tuple(arrays for _, arrays in answered))
            return found if answered else None
        bounds = remaining
    return None


def fit(reference: Stack, bounds: Sequence[Bounds], settings: FlowerSettings) -> tuple[Extractor, str]:
    """S1 and S2 on the server, and the version that says which bounds a descriptor was made under."""
    merged = merge_bounds(bounds)
    if settings.bounds == "scalar":
        merged = scalar_bounds(merged)
    projector = fit_projector(merged, settings.components)
    version = digest(bounds_arrays(merged))
    return Extractor(reference, merged, projector, settings.covariance == "full"), version


def ask_bounds(exchange: Exchange, nodes: Sequence[Node], reference: Stack, width: int) -> dict[Node, Bounds]:
    """The bounds of every node whose answer can be used."""
    (model,) = exchange.offer(reference)
    found: dict[Node, Bounds] = {}
    for node, content in exchange.ask(exchange.message(node.id, "query.bounds", model=model) for node in nodes):
        arrays, fault = read(content, BOUNDS, lambda arrays: bounds_fault(arrays, width))
        fault = fault or version_fault(content[ABOUT].get("base"), model, "its bounds")
        if fault is not None or arrays is None:
            exchange.roster.refuse(node, fault or "no bounds")
        else:
            found[node] = read_bounds(arrays)
    for node, fault in zip(list(found), wide_faults(list(found.values())), strict=True):
        if fault is not None:
            exchange.roster.refuse(node, fault)
            del found[node]
    return found


def ask_descriptors(
    exchange: Exchange,
    nodes: Sequence[Node],
    extractor: Extractor,
    version: str,
    settings: FlowerSettings,
    labelled: bool = True,
) -> list[tuple[Node, Arrays]]:
    """The descriptors of every node whose answer can be used, in client order."""
    (model,) = exchange.offer(extractor.reference)
    ask: dict[str, Any] = {
        "bounds-version": version,
        "components": settings.components,
        "full-covariance": extractor.full_covariance,
        **({} if labelled else {"step": "describe"}),
    }
    box = {BOUNDS: pack(bounds_arrays(extractor.bounds))}
    kind = "query.descriptor" if labelled else "query.assign"
    found: list[tuple[Node, Arrays]] = []
    for node, content in exchange.ask(exchange.message(node.id, kind, ask, model, box) for node in nodes):
        sent, fault = read(content, DESCRIPTOR, lambda _: None)
        arrays = sent if sent is None or labelled else _completed(sent)
        if arrays is not None and fault is None:
            fault = first_fault(_faults(content, arrays, model, version, extractor, node, labelled))
        if fault is not None or arrays is None:
            exchange.roster.refuse(node, fault or "no descriptor")
        else:
            found.append((node, arrays))
    return found


def _completed(arrays: Arrays) -> Arrays:
    """What an unlabelled node sent in full form; left alone where it is no such thing, for the check to name it."""
    try:
        return completed(arrays)
    except (KeyError, ValueError):
        return arrays


def _faults(
    content: Any, arrays: Arrays, model: str, version: str, extractor: Extractor, node: Node, labelled: bool
) -> Any:
    about = content[ABOUT]
    yield version_fault(about.get("base"), model, "its descriptor's model")
    yield version_fault(about.get("bounds-version"), version, "its descriptor's bounds")
    yield descriptor_fault(arrays, extractor, node.classes if labelled else 0, node.examples)


def read(content: Any, name: str, check: Callable[[Arrays], str | None]) -> tuple[Arrays | None, str | None]:
    """The arrays of a record and what is wrong with them; a record that cannot even be read is wrong too."""
    if not isinstance(content, RecordDict) or name not in content or ABOUT not in content:
        return None, f"its answer holds no {name}"
    try:
        arrays = unpack(content[name])
        return arrays, check(arrays)
    except Exception as error:  # what a stranger sends may fail in any way
        return None, f"its {name} cannot be read: {type(error).__name__}"
