"""Wrap the prose of Markdown files at 100 characters: `python -m docs.wrap FILE…`. Code, tables and headings stay."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
BULLET = re.compile(r"^(\s*)([-*+]|\d+\.)\s+")
MARKED = ("|", "#", "<", "![", "---", "???", "!!!", ">")
"""What begins a line that is no prose."""


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The lines of a document, in paragraphs and list items of prose (True) and single other lines (False)."""
    prose: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        starts_item = bool(BULLET.match(line))
        indented = line.startswith("    ") and not starts_item and not (prose and prose[0].startswith((" ", "-", "1")))
        other = fenced or fence or indented or not line.strip() or line.lstrip().startswith(MARKED)
        if prose and (other or starts_item):
            yield True, prose
            prose = []
        if fence:
            fenced = not fenced
        if other:
            yield False, [line]
        else:
            prose.append(line)
    if prose:
        yield True, prose


def wrapped(text: str) -> str:
    """The same words; paragraphs with a line that is too long are wrapped anew."""
    lines: list[str] = []
    for prose, part in paragraphs(text):
        lines += _wrap(part) if prose and any(len(line) > WIDTH for line in part) else part
    return "\n".join(lines)


def too_long(text: str) -> list[str]:
    """Lines of prose that could be wrapped, and are not."""
    short = set(wrapped(text).split("\n"))
    return [
        line for prose, part in paragraphs(text) if prose for line in part if len(line) > WIDTH and line not in short
    ]


def _wrap(part: list[str]) -> list[str]:
    bullet = BULLET.match(part[0])
    head = bullet.group(0) if bullet else part[0][: len(part[0]) - len(part[0].lstrip())]
    words = " ".join([part[0][len(head) :], *(line.strip() for line in part[1:])])
    kept = re.sub(r"`[^`]*`", lambda code: code.group(0).replace(" ", "\0"), words)
    found = textwrap.wrap(
        kept,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for k in range(1, len(found)):  # a line must not begin like a list or a heading
        if re.match(r"\s*([-*+]|\d+\.|#+|>)(\s|$)", found[k]):
            found[k - 1], _, word = found[k - 1].rpartition(" ")
            found[k] = " " * len(head) + word + " " + found[k].lstrip()
    return [line.replace("\0", " ") for line in found]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(wrapped(path.read_text(encoding="utf-8")), encoding="utf-8")
