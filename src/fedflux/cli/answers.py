"""How every command ends: with an answer on stdout, or with one line on stderr and a status."""

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def finish(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """End with a result: one JSON object as the last line of stdout, or in words."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        show(result)


def fail(message: str, status: int) -> NoReturn:
    """End with one line and this status: 2 for bad input, 130 after Ctrl-C, else 1."""
    print(f"fedflux: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
