"""How a worker process behaves: its parent alone answers Ctrl-C, and when the parent is gone it leaves too.

Light, since every fresh process loads it.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def behave() -> None:
    """For the beginning of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    from fedflux.engine.allocator import keep_freed_memory  # last: it loads torch, as the work itself will

    keep_freed_memory()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
