"""A client of a fedflux service: it describes and scores its data here, is told its cluster, and predicts here.

Nothing of the data leaves this process but scores: a log-likelihood a cluster, a misfit, and a count of records.
It needs numpy, scipy, onnxruntime and httpx: `pip install 'fedflux[serve]'`, no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.files import write_bytes
from fedflux.serve.bundle import CARD, EXTRACTOR, MOMENTS, Bundle, build_bundle
from fedflux.serve.container import MANIFEST, Files, check_manifest, digest_of
from fedflux.serve.graphs import Graph
from fedflux.serve.service.reading import scores_as_plain
from fedflux.serve.signing import SIGNATURE, public_key

NEEDED = (CARD, MOMENTS, f"{EXTRACTOR}.onnx")
"""Files that it takes to describe and score."""
TRIES = 3
"""How often a client asks anew while the service goes over to another bundle."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Where the service places the client."""

    cluster: int
    name: str
    posterior: Mapping[str, float]
    confidence: float
    novel: bool | None
    """None where the cluster is too small to say."""
    score: float | None
    bundle: str
    weights: Mapping[str, float]
    """How much of each model is in the client's answer."""
    digests: Mapping[str, str]
    """Of the models' ONNX files."""


class Client:
    """Asks a service.

    key
        The API key, where the service wants one.
    cache
        A folder for what is downloaded, by digest; by default one that goes with this process.
    trust
        The public key (PEM) of who signs bundles; others are refused.

    >>> with Client("https://clinics.example", key="…") as client:  # doctest: +SKIP
    ...     answer = client.assign(x)
    ...     probabilities = client.predict(x, answer)
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        cache: str | Path | None = None,
        trust: str | Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise FedfluxError("fedflux.client needs httpx: pip install 'fedflux[serve]'") from error
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, follow_redirects=False)
        self._failed = httpx.HTTPError
        self._trusted = None if trust is None else public_key(Path(trust).expanduser())
        self._cache = Path(mkdtemp(prefix="fedflux-")) if cache is None else Path(cache).expanduser()
        self._cache.mkdir(parents=True, exist_ok=True)
        self._bundle: Bundle | None = None
        self._graphs: dict[str, Graph] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close connections; what was downloaded stays in the cache."""
        self._http.close()

    @property
    def bundle(self) -> Bundle:
        """What describes and scores, fetched once."""
        if self._bundle is None:
            self._bundle = self._fetch_bundle()
        return self._bundle

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the columns of predictions are called."""
        return self.bundle.class_names

    def assign(self, x: Any, worth: float | None = None) -> Answer:
        """Where a client with these records belongs. `worth`: how many different records they count as."""
        for _ in range(TRIES):
            bundle = self.bundle
            sent = {"bundle": bundle.id, "scores": scores_as_plain(bundle.scores(x, worth))}
            response = self._ask("POST", "/v1/assign", json=sent, taken=(200, 409))
            if response.status_code == 200:
                return _answer(response.json())
            self._bundle = None  # another bundle is served now
        raise FedfluxError("the service changes its bundle faster than one can be scored: ask again later")

    def predict(self, x: Any, answer: Answer | None = None) -> NDArray[np.float32]:
        """Probabilities of the classes, a row a record, by the models that this client was given; all computed here."""
        for _ in range(TRIES):
            given = self.assign(x) if answer is None else answer
            prepared = self.bundle.form.prepared(x)
            try:
                graphs = {name: self._model(name, given.digests[name]) for name in given.weights}
            except _AnotherBundleError:
                self._bundle = None
                if answer is not None:
                    raise FedfluxError("the service has another bundle than this answer is of: assign anew") from None
                continue
            return self.bundle.mixed((given.weights[name], graph(prepared)) for name, graph in graphs.items())
        raise FedfluxError("the service changes its bundle faster than models are fetched: ask again later")

    def _model(self, name: str, digest: str) -> Graph:
        """A model of the bundle, and no other: what is not in its manifest, nobody has signed."""
        if self.bundle.files.digests.get(f"models/{name}.onnx") != digest:
            raise _AnotherBundleError
        if digest not in self._graphs:
            content = self._cached(digest) or self._download(f"/v1/models/{name}?format=onnx", digest)
            self._graphs[digest] = Graph.of(content, "the service", name)
        return self._graphs[digest]

    def _fetch_bundle(self) -> Bundle:
        for _ in range(TRIES):
            manifest = self._ask("GET", f"/v1/bundle/{MANIFEST}").content
            signature = None
            if self._trusted is not None:
                found = self._ask("GET", f"/v1/bundle/{SIGNATURE}", taken=(200, 404))
                signature = found.content if found.status_code == 200 else None
            digests = check_manifest("the service", manifest, signature, self._trusted)
            missing = next((name for name in NEEDED if name not in digests), None)
            if missing is not None:
                raise FedfluxError(f"the service's bundle has no {missing}")
            try:
                contents = {name: self._file(name, digests[name]) for name in NEEDED}
            except _AnotherBundleError:
                continue
            signed = self._trusted is not None
            files = Files(digest_of(manifest), contents, digests, manifest, signature, signed)
            return build_bundle(files, "the service", models=False)
        raise FedfluxError("the service changes its bundle faster than it can be fetched: ask again later")

    def _file(self, name: str, digest: str) -> bytes:
        return self._cached(digest) or self._download(f"/v1/bundle/{name}", digest)

    def _cached(self, digest: str) -> bytes | None:
        """What was downloaded before, if nobody changed it since."""
        try:
            content = (self._cache / digest).read_bytes()
        except OSError:
            return None
        return content if digest_of(content) == digest else None

    def _download(self, address: str, digest: str) -> bytes:
        response = self._ask("GET", address, headers={"If-Match": f'"{digest}"'}, taken=(200, 404, 412))
        if response.status_code != 200:
            raise _AnotherBundleError
        content: bytes = response.content
        if digest_of(content) != digest:
            raise FedfluxError(f"what the service sent of {address} is not what its manifest says")
        write_bytes(self._cache / digest, content)
        return content

    def _ask(self, method: str, address: str, taken: tuple[int, ...] = (200,), **how: Any) -> Any:
        try:
            response = self._http.request(method, address, **how)
        except self._failed as error:
            raise FedfluxError(f"{self._http.base_url} does not answer: {type(error).__name__}: {error}") from error
        if response.status_code not in taken:
            try:
                why = str(response.json()["error"])
            except (ValueError, KeyError, TypeError):
                why = "no reason was given"
            raise FedfluxError(f"the service refused ({response.status_code}): {why}")
        return response


class _AnotherBundleError(Exception):
    """The service has gone over to another bundle."""


def _answer(told: Mapping[str, Any]) -> Answer:
    return Answer(
        cluster=int(told["cluster"]),
        name=str(told["name"]),
        posterior=dict(told["posterior"]),
        confidence=float(told["confidence"]),
        novel=told["novel"],
        score=told["score"],
        bundle=str(told["bundle"]),
        weights={one["id"]: float(one["weight"]) for one in told["models"]},
        digests={one["id"]: str(one["onnx"]["sha256"]) for one in told["models"]},
    )
