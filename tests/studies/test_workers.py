"""Workers end without a word, also when they are told to while they are ending."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
ENDING = """
import atexit, os, signal
from multiprocessing import Pipe
from fedflux.studies import workers

atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
ours, theirs = Pipe()
ours.close()
workers._serve(theirs, 1.0)
print("ended", flush=True)
"""


def test_a_worker_that_is_stopped_while_it_ends_prints_no_traceback() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", ENDING], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended\n"
    assert done.stderr == ""
