"""One runner in a process of its own: `python -m fedflux.studies.bench.worker`, told what to do line by line.

Requests come in on stdin and answers go out on the stdout the process was given, one JSON document a line; whatever
libraries print goes to stderr. The end of stdin ends the process.
"""

import json
import os
import signal
import sys
import traceback
from time import perf_counter
from typing import Any

import torch

from fedflux.studies.bench.memory import peak_bytes
from fedflux.studies.bench.runners import Runner, make_runner
from fedflux.studies.bench.work import Work


def main() -> None:
    """Serve until nobody asks any more; the first line names the runner and its work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that measures answers Ctrl-C
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    work = Work(**first["work"])
    runner = make_runner(first["runner"], work)
    for line in sys.stdin:
        try:
            answer = do(json.loads(line), runner, work)
        except Exception as error:  # a peer may fail in any way: the others are still measured
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    runner.close()


def do(request: str, runner: Runner, work: Work) -> dict[str, Any]:
    """Answer one request."""
    if request == "start":
        runner.start()
        return {}
    if request == "round":
        begin = perf_counter()
        samples = runner.round()
        if work.device.startswith("cuda"):
            torch.cuda.synchronize(work.device)
        return {"seconds": perf_counter() - begin, "samples": samples}
    if request == "look":
        return {"loss": runner.loss(), "host_peak": peak_bytes(os.getpid()), "device_peak": _device_peak(runner, work)}
    raise ValueError(f"unknown request '{request}'")


def _device_peak(runner: Runner, work: Work) -> int | None:
    if not work.device.startswith("cuda"):
        return None
    elsewhere = runner.device_peak()
    return torch.cuda.max_memory_allocated(work.device) if elsewhere is None else elsewhere


if __name__ == "__main__":
    main()
