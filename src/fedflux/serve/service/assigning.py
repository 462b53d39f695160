"""`POST /v1/assign`: from a client's scores, or its features, to its cluster and what to download."""

import time
from collections.abc import Mapping
from typing import Any

from fedflux.clustering.placement.offer import Scores
from fedflux.errors import FedfluxError
from fedflux.serve.bundle import Assigned, Bundle
from fedflux.serve.keeping.audit import Audit, Entry
from fedflux.serve.service.computing import computed, written
from fedflux.serve.service.gate import RefusedError
from fedflux.serve.service.holder import Served
from fedflux.serve.service.logs import log
from fedflux.serve.service.metrics import Metrics
from fedflux.serve.service.reading import check_bundle, number, scores_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Give scores, which a client computes of its data by itself, or features.",
    "oneOf": [{"required": ["scores"]}, {"required": ["features"]}],
    "properties": {
        "bundle": {"type": "string", "description": "the bundle that scores are of; 409 where another is served"},
        "scores": {
            "type": "object",
            "required": ["likelihood", "worth", "misfit"],
            "properties": {
                "likelihood": {"type": "array", "items": {"type": "number"}, "description": "one a cluster"},
                "worth": {"type": "number", "exclusiveMinimum": 0, "description": "how many distinct records"},
                "misfit": {
                    "type": "object",
                    "required": ["mean", "variance", "count"],
                    "properties": {name: {"type": "number", "minimum": 0} for name in ("mean", "variance", "count")},
                },
            },
        },
        "features": {"type": "array", "minItems": 1, "items": {}, "description": "records as models take them, (N, …)"},
        "worth": {"type": "number", "exclusiveMinimum": 0, "description": "of features: how many distinct records"},
    },
}


async def scores_asked(told: Mapping[str, Any], bundle: Bundle, most: int) -> Scores:
    """The scores that came, or those of the features that came."""
    check_bundle(told, bundle.id)
    if ("scores" in told) == ("features" in told):
        raise RefusedError(422, "give either scores or features")
    if "scores" in told:
        return scores_of(told["scores"], len(bundle.clusters))
    worth = number(told, "worth", 1e-6) if "worth" in told else None
    if not isinstance(told["features"], list):
        raise RefusedError(422, "features must be a list of records")
    try:
        return await computed(_described, bundle, told["features"], worth, most)
    except FedfluxError as error:
        raise RefusedError(422, str(error)) from error


def _described(bundle: Bundle, features: Any, worth: float | None, most: int) -> Scores:
    bundle.form.prepared(features, most)
    return bundle.scores(features, worth)


async def record(served: Served, found: Assigned, key: str, audit: Audit, metrics: Metrics) -> None:
    """Write down who was placed where, and tell the watch, before the answer is sent."""
    score = found.score if found.cluster.calibrated else None
    entry = Entry(time.time(), key, served.bundle.id, found.cluster.name, found.novel, score)
    try:
        await written(audit.write, entry)
    except FedfluxError as error:
        log("audit log", level="error", why=str(error))
        raise RefusedError(503, "the audit log cannot be written, and without it nobody is placed") from error
    served.watch.add(entry)
    metrics.assigned.labels(found.cluster.name).inc()
    metrics.novel.inc(found.novel)
    metrics.evidence.set(served.watch.wealth)
    metrics.retrain.set(served.watch.drifted is not None)


def answer(bundle: Bundle, found: Assigned) -> dict[str, Any]:
    """Where the client belongs, how sure that is, and what it may download."""
    return {
        "bundle": bundle.id,
        "cluster": found.cluster.number,
        "name": found.cluster.name,
        "confidence": found.confidence,
        "posterior": {one.name: float(p) for one, p in zip(bundle.clusters, found.posterior, strict=True)},
        "novel": found.novel if found.cluster.calibrated else None,
        "score": found.score if found.cluster.calibrated else None,
        "models": [
            {
                "id": name,
                "weight": weight,
                "onnx": _file(bundle, name, "onnx"),
                "safetensors": _file(bundle, name, "safetensors"),
            }
            for name, weight in found.weights.items()
        ],
    }


def _file(bundle: Bundle, name: str, kind: str) -> dict[str, Any]:
    path = f"models/{name}.{kind}"
    return {
        "url": f"/v1/models/{name}?format={kind}",
        "sha256": bundle.files.digests[path],
        "bytes": len(bundle.files.contents[path]),
    }
