"""The service's routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Path, Query
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from fedflux.errors import FedfluxError
from fedflux.serve.keeping.audit import Audit
from fedflux.serve.keeping.keys import Keys
from fedflux.serve.service import assigning, downloads, open_inference
from fedflux.serve.service.computing import computed
from fedflux.serve.service.gate import Gate, RefusedError
from fedflux.serve.service.holder import Holder
from fedflux.serve.service.logs import log
from fedflux.serve.service.metrics import Metrics
from fedflux.serve.service.observed import Observed
from fedflux.serve.service.pages import page_file
from fedflux.serve.service.reading import as_json, read_object
from fedflux.serve.service.settings import AUDIT_FILE, ServiceSettings
from fedflux.serve.signing import public_key
from fedflux.version import __version__

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}
    for status, text in {
        400: "the body cannot be read",
        401: "no key, or one that is unknown or revoked",
        403: "the key is not for this",
        404: "there is no such thing",
        409: "of another bundle",
        412: "the file is another one now",
        413: "too large",
        415: "compressed",
        416: "no such range",
        422: "the values do not fit",
        429: "too many requests",
        503: "the audit log cannot be written",
    }.items()
}


FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}, "application/json": {}, "text/markdown": {}}}
}


class File(Response):
    """Bytes of a model."""

    media_type = "application/octet-stream"


def make_app(settings: ServiceSettings) -> FastAPI:
    """The service over one bundle."""
    keys, metrics = Keys(settings.state), Metrics()
    settings.check(len([key for key in keys.all() if not key.revoked]))
    trusted = None if settings.trust is None else public_key(settings.trust)
    audit = Audit(settings.state / AUDIT_FILE)
    holder = Holder(settings.bundle, trusted, audit)
    gate = Gate(keys, settings.most_bytes, settings.origins)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        log("started", bundle=holder.current.bundle.id, clusters=len(holder.current.bundle.clusters))
        yield
        audit.close()
        log("stopped")

    app = FastAPI(
        title="fedflux",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=life,
        responses=REFUSALS,
    )
    app.state.reload = lambda: _reload(holder, metrics)
    _add_placing(app, holder, gate, audit, metrics, settings)
    _add_inference(app, holder, gate, metrics, settings)
    _add_operation(app, holder, gate, metrics)
    _add_pages(app)
    _add_errors(app)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    app.add_middleware(Observed, metrics=metrics)
    if settings.origins:
        methods, headers = ["GET", "POST"], ["Authorization", "Content-Type", "If-Match", "Range"]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=methods, allow_headers=headers
        )
    return app


def _answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    told = {"X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(as_json(content), status, told, media_type="application/json")


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _add_placing(
    app: FastAPI, holder: Holder, gate: Gate, audit: Audit, metrics: Metrics, settings: ServiceSettings
) -> None:
    @app.post("/v1/assign", tags=["placing"], openapi_extra=_body(assigning.SCHEMA))
    async def assign(request: Request) -> Response:
        """Place a client by its scores, or by its features: its cluster, how sure, how novel, what to download."""
        key = gate.enter(request, "assign")
        served = holder.current
        told = read_object(await gate.body(request))
        scores = await assigning.scores_asked(told, served.bundle, settings.most_records)
        found = served.bundle.assign(scores)
        await assigning.record(served, found, key, audit, metrics)
        return _answer(assigning.answer(served.bundle, found))

    @app.get("/v1/models", tags=["models"])
    async def models(request: Request) -> Response:
        """The bundle that is served, its clusters and its models."""
        gate.enter(request, "models")
        bundle = holder.current.bundle
        held = bundle.files
        files = {name: {"sha256": held.digests[name], "bytes": len(held.contents[name])} for name in held.contents}
        clusters = [
            {"number": one.number, "name": one.name, "members": one.members, "calibrated": one.calibrated}
            for one in bundle.clusters
        ]
        names = list(bundle.answering.models)
        answer = {"bundle": bundle.id, "clusters": clusters, "models": names, "files": files}
        classes = {"class_names": list(bundle.class_names), "several_labels": bundle.several_labels}
        return _answer({**answer, **classes, "input": bundle.form.as_plain()})

    @app.get("/v1/models/{id}", tags=["models"], response_class=File)
    async def model(
        request: Request, id: str = Path(), format: str = Query("onnx", pattern="^(onnx|safetensors)$")
    ) -> Response:
        """A model, the extractor or the densities: ranges, ETag, If-Match, If-None-Match."""
        gate.enter(request, "models")
        bundle = holder.current.bundle
        return downloads.send(bundle, downloads.model_file(bundle, id, format), request)

    @app.get("/v1/bundle/{file:path}", tags=["models"], responses=FILES)
    async def file(request: Request, file: str) -> Response:
        """A file of the bundle by its name in the manifest, or manifest.json itself."""
        gate.enter(request, "models")
        return downloads.send(holder.current.bundle, file, request)


def _add_inference(app: FastAPI, holder: Holder, gate: Gate, metrics: Metrics, settings: ServiceSettings) -> None:
    @app.get("/v2", tags=["open inference protocol"])
    async def server() -> Response:
        """What server this is."""
        return _answer(open_inference.SERVER)

    @app.get("/v2/health/live", tags=["open inference protocol"])
    async def live() -> Response:
        """It runs."""
        return _answer({"live": True})

    @app.get("/v2/health/ready", tags=["open inference protocol"])
    async def ready() -> Response:
        """It has a bundle."""
        return _answer({"ready": True})

    @app.get("/v2/models/{name}", tags=["open inference protocol"])
    async def about(request: Request, name: str) -> Response:
        """What goes into a model and what comes out."""
        gate.enter(request, "infer")
        return _answer(open_inference.metadata(holder.current.bundle, name))

    @app.get("/v2/models/{name}/ready", tags=["open inference protocol"])
    async def model_ready(request: Request, name: str) -> Response:
        """Whether a model can be asked."""
        gate.enter(request, "infer")
        open_inference.metadata(holder.current.bundle, name)
        return _answer({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer", tags=["open inference protocol"], openapi_extra=_body(open_inference.SCHEMA))
    async def infer(request: Request, name: str) -> Response:
        """Probabilities of classes: of `cluster-N`, or of one model; `extractor` gives latents."""
        gate.enter(request, "infer")
        bundle = holder.current.bundle
        told, binary = open_inference.parse(await gate.body(request), request.headers.get(open_inference.LENGTH))
        work = open_inference.infer
        content, length, count = await computed(work, bundle, name, told, binary, settings.most_records)
        metrics.records.labels(name).inc(count)
        if length is None:
            return Response(content, media_type="application/json")
        headers = {open_inference.LENGTH: str(length)}
        return Response(content, media_type="application/octet-stream", headers=headers)


def _add_operation(app: FastAPI, holder: Holder, gate: Gate, metrics: Metrics) -> None:
    @app.get("/v1/watch", tags=["operation"])
    async def watch(request: Request) -> Response:
        """Whether clients drift away from what the bundle was made of, and whether to train again."""
        gate.enter(request, "watch")
        served = holder.current
        return _answer({"bundle": served.bundle.id, "loaded": served.since, **served.watch.told()})

    @app.post("/v1/reload", tags=["operation"])
    async def reload(request: Request) -> Response:
        """Read the bundle again, where it lies; a bundle that is refused leaves the one before in place."""
        gate.enter(request, "reload")
        try:
            bundle = await run_in_threadpool(_reload, holder, metrics)
        except FedfluxError as error:
            raise RefusedError(422, f"{error}; {holder.current.bundle.id[:12]} goes on being served") from error
        return _answer({"bundle": bundle})

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    async def figures(request: Request) -> Response:
        """Figures for Prometheus."""
        gate.enter(request, "metrics")
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _reload(holder: Holder, metrics: Metrics) -> str:
    try:
        bundle = holder.reload().bundle.id
    except FedfluxError as error:
        metrics.reloads.labels("refused").inc()
        log("reload refused", why=str(error))
        raise
    metrics.reloads.labels("loaded").inc()
    log("reloaded", bundle=bundle)
    return bundle


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return page_file("index.html", request)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(request: Request, name: str) -> Response:
        return page_file(name, request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return page_file("docs.html", request)


def _add_errors(app: FastAPI) -> None:
    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return _answer({"error": error.words}, error.status, error.headers)

    def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _answer({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))

    def unfit(request: Request, error: Exception) -> Response:
        return _answer({"error": "a parameter of this address does not fit; /docs says what does"}, 422)

    def broken(request: Request, error: Exception) -> Response:
        log("failed", level="error", error=f"{type(error).__name__}: {error}"[:500])
        return _answer({"error": "the service failed; its log says why"}, 500)

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(Exception, broken)


def _schema(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, with what refusals look like and how callers show who they are."""
    if app.openapi_schema is None:
        told = FastAPI.openapi(app)
        parts = told.setdefault("components", {})
        words = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        parts.setdefault("schemas", {})["Refusal"] = words
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{"key": []}, {}]
        app.openapi_schema = told
    return app.openapi_schema
