"""Files of the bundle over HTTP: by digest (ETag), in ranges, and never of another bundle than was asked for."""

import re

from starlette.requests import Request
from starlette.responses import Response

from fedflux.serve.bundle import DENSITIES, EXTRACTOR, MOMENTS, Bundle
from fedflux.serve.container import MANIFEST
from fedflux.serve.service.gate import RefusedError, plain
from fedflux.serve.signing import SIGNATURE

TYPES = {"json": "application/json", "md": "text/markdown; charset=utf-8"}
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def model_file(bundle: Bundle, name: str, kind: str) -> str:
    """The file of a model, of the extractor or of the clusters' densities."""
    if name in (EXTRACTOR, DENSITIES, MOMENTS.partition(".")[0]):
        path = f"{name}.{kind}"
    elif name in bundle.answering.models:
        path = f"models/{name}.{kind}"
    else:
        known = ", ".join([EXTRACTOR, DENSITIES, *bundle.answering.models][:12])
        raise RefusedError(404, f"there is no model {plain(name)}: there are {known}")
    if path not in bundle.files.contents:
        raise RefusedError(404, f"there is no {kind} of {plain(name)}")
    return path


def send(bundle: Bundle, path: str, request: Request) -> Response:
    """A file of the bundle, whole, in part, or not again where the caller has it."""
    content, digest = _content(bundle, path)
    tag = f'"{digest}"'
    headers = {
        "ETag": tag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Type": TYPES.get(path.rpartition(".")[2], "application/octet-stream"),
        "X-Content-Type-Options": "nosniff",
        "X-Fedflux-Bundle": bundle.id,
    }
    wanted = request.headers.get("if-match")
    if wanted is not None and wanted != "*" and tag not in _tags(wanted):
        raise RefusedError(412, "this file is another one now: another bundle is served; ask anew", ETag=tag)
    known = request.headers.get("if-none-match")
    if known is not None and (known == "*" or tag in _tags(known)):
        return Response(status_code=304, headers=headers)
    part = request.headers.get("range")
    if part is None or request.headers.get("if-range", tag) != tag:
        return Response(content, headers=headers)
    span = _span(part, len(content))
    if span is None:
        return Response(content, headers=headers)
    begin, end = span
    if begin >= end:
        raise RefusedError(416, f"this file has {len(content)} bytes", Content_Range=f"bytes */{len(content)}")
    headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
    return Response(content[begin:end], status_code=206, headers=headers)


def _content(bundle: Bundle, path: str) -> tuple[bytes, str]:
    if path == MANIFEST:
        return bundle.files.manifest, bundle.id
    if path == SIGNATURE and bundle.files.signature is not None:
        return bundle.files.signature, f"{bundle.id}-signature"
    if path not in bundle.files.contents:
        raise RefusedError(404, f"the bundle has no file {plain(path)}")
    return bundle.files.contents[path], bundle.files.digests[path]


def _tags(header: str) -> list[str]:
    return [one.strip().removeprefix("W/") for one in header.split(",")]


def _span(header: str, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last of one range; None for what is no such range, and ignored."""
    found = RANGE.fullmatch(header.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        return max(size - int(last), 0), size if int(last) else 0
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last) + 1, size) if last else size
