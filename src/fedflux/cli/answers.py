"""How every command ends: with an answer on stdout, or with one line on stderr and a status."""

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

FAQ = {
    "unknown-name": ("unknown algorithm", "unknown dataset", "unknown shift", "unknown clusterer", "unknown model"),
    "missing-values": ("holds NaN or infinite values", "fill it or drop the line"),
    "no-labels": ("nobody has labels to train with",),
    "own-clients": ("is split over its own",),
    "needs-images": ("needs images (channels, height, width), not",),
    "no-latents": ("shows no latents",),
    "other-process": ("cannot be made in another process",),
    "model-factory": ("nn.Module, not", "cannot import"),
    "missing-extra": ("pip install 'fedflux[",),
    "no-groups": ("this data has no groups",),
    "private-settings": ("--epsilon protects diagonal descriptors",),
    "unseen-pygx": ("has no test phase: features cannot show P(Y|X)",),
    "gpu-memory": ("has too little memory",),
    "changed-files": ("was changed or cut off since the run",),
    "no-run-folder": ("is no run folder",),
    "no-bundle": ("there is no bundle",),
    "no-keys": ("without API keys",),
    "node-refuses": ("this node has a max-epsilon",),
}
"""Entries of docs/faq.md by the name of their anchor, and the words of the messages that each explains."""


def finish(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """End with a result: one JSON object as the last line of stdout, or in words."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        show(result)


def fail(message: str, status: int) -> NoReturn:
    """End with one line and this status: 2 for bad input, 130 after Ctrl-C, else 1."""
    print(f"fedflux: {' '.join(message.split())}{read_on(message)}", file=sys.stderr)
    sys.exit(status)


def read_on(message: str) -> str:
    """Where the FAQ explains a message, as the end of its line; nothing where it does not."""
    return next((f" (FAQ: {name})" for name, words in FAQ.items() if any(one in message for one in words)), "")
