"""Where graphs are run: beside the loop that takes requests, on as many threads as there are cores and no more.

More threads than cores would only wait for each other, and each keeps memory of its own.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
THREADS = ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 1), thread_name_prefix="graphs")
WRITER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
"""Writes the audit log: where somebody else holds that database, nobody but who is to be written down waits."""


async def computed(work: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """What the work gives; requests wait for their turn."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, partial(work, *values, **named))


async def written(work: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """The same, one after the other."""
    return await asyncio.get_running_loop().run_in_executor(WRITER, partial(work, *values, **named))
