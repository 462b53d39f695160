"""The service under load, beside the run that its bundle is made of, and under attack.

    python benchmarks/serving.py RUN [--parts start,same,load,memory,reloads,fuzz] [--seconds 60] [--repeats 3]
        [--assign-rate 200] [--infer-rate 50] [--out TABLE.md]

RUN is a finished run of images with `--unseen N`. The service is `fedflux serve` in a process of its own on loopback.

`start`: seconds from the start of the process to the first answer. `same`: the unseen clients over HTTP against the run
in this process. `load`: requests at fixed times, whatever the answers before took; latencies count from the time at
which a request was due, so that a service that falls behind shows it. The load generator is a process, too; its share
of a core is told. `memory`: how much the service's resident memory grows over 20,000 requests, after 2,000 to warm up.
`reloads`: 100 reloads of two bundles by turns, while others ask. `fuzz`: 10,000 bodies, some random bytes, most of them
good ones with something in them replaced; an answer of 5xx or with a traceback in it counts as failed.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

PARTS = ("start", "same", "load", "memory", "reloads", "fuzz")
CONNECTIONS = 32
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    -1e308,
    10**400,
    "",
    "x" * 5000,
    "\ud800",
    [],
    {},
    [[[]]],
    {"a": 1},
    0.5,
)


class Served:
    """A service in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, key: str, seconds: float) -> None:
        self.process, self.port, self.key, self.seconds = process, port, key, seconds
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)

    def memory(self) -> int:
        """Resident kilobytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(bundle: Path, state: Path, port: int) -> Iterator[Served]:
    """`fedflux serve`, ready."""
    from fedflux.serve.keeping.keys import SCOPES, Keys

    names = [key.name for key in Keys(state).all() if not key.revoked]
    if "benchmark" in names:
        Keys(state).revoke("benchmark")
    key = Keys(state).add("benchmark", SCOPES, 1e6)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "fedflux", "serve", str(bundle), "--port", str(port), "--state", str(state)]
    with (state / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, text=True)
    try:
        with httpx.Client(timeout=1) as asking:
            while True:
                try:
                    asking.get(f"http://127.0.0.1:{port}/v2/health/ready").raise_for_status()
                    break
                except httpx.HTTPError:
                    if process.poll() is not None or time.perf_counter() - begun > 60:
                        raise SystemExit((state / "log").read_text()) from None
                    time.sleep(0.01)
            seconds = time.perf_counter() - begun
        yield Served(process, port, key, seconds)
    finally:
        process.terminate()
        process.wait(60)


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request, read its answer; the status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


async def _generate(port: int, request: bytes, rate: float, count: int) -> dict[str, Any]:
    """Requests at fixed times over a few connections; milliseconds from when each was due."""
    idle: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    begin = time.perf_counter() + 0.2

    async def ask(due: float) -> None:
        pair = await idle.get()
        statuses[await _one(pair[0], pair[1], request)] += 1
        latencies.append(1e3 * (time.perf_counter() - due))
        idle.put_nowait(pair)

    tasks = []
    for k in range(count):
        due = begin + k / rate
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask(due)))
    await asyncio.gather(*tasks)
    seconds, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "statuses": dict(statuses),
        "seconds": seconds,
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
        "max": max(latencies),
        "generator_cpu": (used.ru_utime + used.ru_stime) / seconds,
    }


def generate(service: Served, request: bytes, rate: float, count: int) -> dict[str, Any]:
    """The load generator in a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(request)
        file.flush()
        command = [sys.executable, __file__, "--generate", f"{service.port}:{rate}:{count}:{file.name}"]
        before = service.cpu()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "service_cpu": (service.cpu() - before) / found["seconds"]}


def request_of(service: Served, path: str, body: bytes, *more: str) -> bytes:
    """An HTTP request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {service.key}", *more]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def bodies(bundle: Any, x: NDArray[Any]) -> dict[str, Any]:
    """A client's scores, and 32 records to predict for: as JSON, and as binary data."""
    from fedflux.serve.service.reading import scores_as_plain

    some = x[:32]
    kind = "UINT8" if some.dtype == np.uint8 else "FP32"
    some = some if kind == "UINT8" else some.astype(np.float32)
    one: dict[str, Any] = {"name": "x", "shape": list(some.shape), "datatype": kind}
    plain = json.dumps({"inputs": [{**one, "data": some.ravel().tolist()}]}).encode()
    parameters = {"binary_data_size": some.nbytes}
    head = json.dumps({"inputs": [{**one, "parameters": parameters}]}).encode()
    scores = json.dumps({"bundle": bundle.id, "scores": scores_as_plain(bundle.scores(x))}).encode()
    return {"assign": scores, "json": plain, "binary": head + some.tobytes(), "head": len(head)}


def load(service: Served, bundle: Any, x: NDArray[Any], options: argparse.Namespace) -> list[str]:
    """Both kinds of requests, best of a few runs."""
    made, infer = bodies(bundle, x), f"/v2/models/{bundle.clusters[0].name}/infer"
    length = f"Inference-Header-Content-Length: {made['head']}"
    kinds = {
        "assign by scores": (request_of(service, "/v1/assign", made["assign"]), options.assign_rate),
        "infer of 32, JSON": (request_of(service, infer, made["json"]), options.infer_rate),
        "infer of 32, binary": (request_of(service, infer, made["binary"], length), options.infer_rate),
    }
    lines = [
        "| load | a second | p50 ms | p99 ms | max ms | errors | generator | service |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (request, rate) in kinds.items():
        runs = [generate(service, request, rate, int(rate * options.seconds)) for _ in range(options.repeats)]
        best = min(runs, key=lambda one: float(one["p99"]))
        errors = sum(count for one in runs for status, count in one["statuses"].items() if status != "200")
        cells = [f"{best[key]:.1f}" for key in ("p50", "p99", "max")]
        shares = [f"{100 * best[key]:.0f} % of a core" for key in ("generator_cpu", "service_cpu")]
        lines.append(f"| {name} | {rate:g} | {' | '.join(cells)} | {errors} | {' | '.join(shares)} |")
        lines.append(f"| p99 of every run | | | {', '.join(format(one['p99'], '.1f') for one in runs)} | | | | |")
    return lines


def same(service: Served, run: Any, clients: Sequence[NDArray[Any]]) -> list[str]:
    """Unseen clients over HTTP against the run in this process."""
    from fedflux.client import Client

    clusters, novel, answers, apart, posterior = 0, 0, 0, 0.0, 0.0
    records = sum(map(len, clients))
    with Client(f"http://127.0.0.1:{service.port}", service.key) as client:
        for x in clients:
            expected, placement = run.predict(x), run.assign(x)
            answer = client.assign(x)
            found = client.predict(x, answer)
            clusters += answer.cluster == placement.cluster[0]
            novel += bool(answer.novel) == bool(placement.novel[0])
            answers += int((found.argmax(axis=1) == expected.argmax(axis=1)).sum())
            apart = max(apart, float(np.abs(found - expected).max()))
            offered = [one.number for one in client.bundle.clusters]
            told = np.array(list(answer.posterior.values()))
            posterior = max(posterior, float(np.abs(told - placement.posterior[0][offered]).max()))
    return [
        f"- {len(clients)} unseen clients over HTTP against the run: same cluster {clusters}, same verdict on novelty "
        f"{novel}; of {records} records the same class {answers}; probabilities are off by up to {apart:.1e}, "
        f"posteriors by {posterior:.1e}."
    ]


def memory(service: Served, bundle: Any, x: NDArray[Any]) -> list[str]:
    """Growth over 20,000 requests, half of each kind."""
    made, infer = bodies(bundle, x), f"/v2/models/{bundle.clusters[0].name}/infer"
    requests = [request_of(service, "/v1/assign", made["assign"]), request_of(service, infer, made["json"])]
    for request in requests:
        generate(service, request, 1e6, 1000)
    before = service.memory()
    for request in requests:
        generate(service, request, 1e6, 10_000)
    after = service.memory()
    growth = 100 * (after / before - 1)
    return [f"- Memory over 20,000 requests: {before / 1024:.1f} to {after / 1024:.1f} MB, {growth:+.1f} %."]


def reloads(service: Served, path: Path, contents: dict[str, bytes], x: NDArray[Any]) -> list[str]:
    """Two bundles by turns, and answers that must be of one of them, whole."""
    from fedflux.serve.container import write_files

    others = {**contents, "README.md": contents["README.md"] + b"\nAnother.\n"}
    ids = {write_files(path, one): one["README.md"] for one in (others, contents)}
    body, stop = {"features": x[:5].tolist()}, threading.Event()
    answered: Counter[str] = Counter()
    wrong: list[str] = []

    def ask() -> None:
        with httpx.Client(base_url=service.http.base_url, headers=service.http.headers, timeout=60) as http:
            while not stop.is_set():
                got, file = http.post("/v1/assign", json=body), http.get("/v1/bundle/README.md")
                bundle = got.json().get("bundle", "")
                answered[bundle] += 1
                right = got.status_code == 200 and bundle in ids and file.status_code == 200
                if not right or file.content != ids.get(file.headers["x-fedflux-bundle"]):
                    wrong.append(got.text[:200])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    refused = 0
    for turn in range(100):
        write_files(path, (others, contents)[turn % 2])
        refused += service.http.post("/v1/reload").status_code != 200
    stop.set()
    for thread in threads:
        thread.join()
    of = " and ".join(str(answered[one]) for one in ids)
    pairs = f"{sum(answered.values())} pairs of requests ({of})"
    return [f"- 100 reloads under load: {pairs}, {len(wrong)} wrong, {refused} reloads refused."]


def fuzz(service: Served, bundle: Any, x: NDArray[Any], count: int = 10_000) -> list[str]:
    """Bodies with something wrong in them."""
    made, rng = bodies(bundle, x[:2]), random.Random(0)
    good = {
        "/v1/assign": [json.loads(made["assign"]), {"features": x[:1].tolist()}],
        f"/v2/models/{bundle.clusters[0].name}/infer": [json.loads(made["json"])],
        "/v2/models/extractor/infer": [json.loads(made["json"])],
    }
    statuses: Counter[int] = Counter()
    failed = []
    for _ in range(count):
        path = rng.choice(list(good))
        body = rng.randbytes(rng.randint(0, 400)) if rng.random() < 0.15 else _spoilt(rng.choice(good[path]), rng)
        got = service.http.post(path, content=body)
        statuses[got.status_code] += 1
        if got.status_code >= 500 or "Traceback" in got.text or (got.status_code >= 400 and "\n" in got.text):
            failed.append((got.status_code, body[:200]))
    told = ", ".join(f"{status}: {times}" for status, times in sorted(statuses.items()))
    return [f"- {count} fuzzed bodies: {len(failed)} failed ({told}).", *(f"  - {one}" for one in failed[:5])]


def _spoilt(good: Any, rng: random.Random) -> bytes:
    body = json.loads(json.dumps(good))
    for _ in range(rng.randint(1, 3)):
        _spoil(body, rng)
    content = json.dumps(body).encode()
    return content[: rng.randint(0, len(content))] if rng.random() < 0.1 else content


def _spoil(body: Any, rng: random.Random) -> None:
    """Replace, drop or double something, wherever it lies."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(min(len(value), 20)))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(body)
    if not places:
        return
    owner, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.6:
        owner[key] = deepcopy(rng.choice(ODD))
    elif kind < 0.8:
        del owner[key]
    elif isinstance(owner, list):
        owner.append(deepcopy(owner[key]))
    else:
        owner[f"{key}2"] = deepcopy(owner[key])


def unseen_clients(run: Any) -> list[NDArray[Any]]:
    """What the run's unseen clients hold, as they have it."""
    from fedflux.runs.runner import build_population

    population = build_population(run.config)[0]
    return [np.asarray(population.everyone.inputs(client, "test")) for client in population.unseen]


def main() -> None:
    if sys.argv[1:2] == ["--generate"]:
        port, rate, count, name = sys.argv[2].split(":", 3)
        print(json.dumps(asyncio.run(_generate(int(port), Path(name).read_bytes(), float(rate), int(count)))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--assign-rate", type=float, default=200)
    parser.add_argument("--infer-rate", type=float, default=50)
    parser.add_argument("--port", type=int, default=8477)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wanted = options.parts.split(",")

    import fedflux
    from fedflux.serve.bundle import open_bundle
    from fedflux.serve.container import write_files
    from fedflux.serve.making import bundle_contents

    run = fedflux.load(options.run)
    clients, contents, lines = unseen_clients(run), bundle_contents(run), []
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        path, state = Path(folder) / "bundle.zip", Path(folder) / "state"
        write_files(path, contents)
        bundle, x = open_bundle(path), clients[0]
        if "start" in wanted:
            starts = []
            for _ in range(options.repeats):
                with serving(path, state, options.port) as service:
                    starts.append(service.seconds)
            lines.append(f"- Start to first answer: {', '.join(f'{one:.2f}' for one in starts)} s.")
        with serving(path, state, options.port) as service:
            work = {
                "same": lambda: same(service, run, clients),
                "load": lambda: ["", *load(service, bundle, x, options), ""],
                "memory": lambda: memory(service, bundle, x),
                "fuzz": lambda: fuzz(service, bundle, x),
                "reloads": lambda: reloads(service, path, contents, x),
            }
            for name in work:
                if name in wanted:
                    lines += work[name]()
                    print("\n".join(lines), file=sys.stderr, flush=True)
    waiting = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    lines.append(f"- {os.cpu_count()} cores; programs that ran or waited in the last 1, 5 and 15 minutes: {waiting}.")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
