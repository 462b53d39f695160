"""The page at `/` and its parts, which come from here alone: the browser is told to load nothing from elsewhere."""

from functools import lru_cache
from gzip import decompress
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from fedflux.serve.service.gate import RefusedError, plain

FOLDER = Path(__file__).parent / "page"
PACKED = ".gz"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "wasm": "application/wasm",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str, bool]]:
    """Every file of the page: its bytes, their digest, and whether they are packed."""
    found = {}
    for path in FOLDER.iterdir():
        content = path.read_bytes()
        packed = path.suffix == PACKED
        name = path.stem if packed else path.name
        found[name] = (content, f'"{sha256(content).hexdigest()[:32]}"', packed)
    return found


@lru_cache(maxsize=4)
def _unpacked(name: str) -> bytes:
    """A packed file as it was, for the few who cannot unpack it: once, since that takes a while."""
    return decompress(_files()[name][0])


def page_file(name: str, request: Request) -> Response:
    """One file of the page."""
    if name not in _files():
        raise RefusedError(404, f"the page has no file {plain(name)}")
    content, tag, packed = _files()[name]
    headers = {**HEADERS, "ETag": tag, **({"Vary": "Accept-Encoding"} if packed else {})}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if packed and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    elif packed:
        content = _unpacked(name)
    return Response(content, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
