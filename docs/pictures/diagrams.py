"""Diagrams: what is where, and what passes between. They show how things are built, and no figures."""

from itertools import pairwise
from pathlib import Path

from docs.pictures.look import FLUX, INK, PALE, WARM, page, place
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

Box = tuple[float, float, float, str, str]
"""The centre of a box, its width, its colour, and its words."""
Arrow = tuple[str, str, str, float]
"""From which box to which, the words beside it, and how far it is moved up, or down with its words below."""
HERE, THERE = FLUX, "#3f5fb0"
"""The colours of what is at the server, or on one's own machine, and of what is at clients."""


def deployment(_: Path) -> Figure:
    """A run over nodes: the session asks, the engine carries, nodes answer."""
    boxes: dict[str, Box] = {
        "session": (1.3, 1.9, 2.1, HERE, "session and method\non the server"),
        "engine": (4.1, 1.9, 1.9, HERE, "FlowerEngine\nchecks every answer"),
        "grid": (6.6, 1.9, 1.5, PALE, "Flower’s Grid\nTLS, keys"),
        "first": (9.6, 3.2, 2.5, THERE, "node: its data, its rules,\nits ledger of ε"),
        "second": (9.6, 1.9, 2.5, THERE, "node"),
        "third": (9.6, 0.6, 2.5, THERE, "node without labels:\nonly chooses a cluster"),
    }
    arrows: list[Arrow] = [
        ("session", "engine", "questions", 0.14),
        ("engine", "session", "results", -0.14),
        ("engine", "grid", "one\nexchange", 0.14),
        ("grid", "engine", "answers", -0.14),
        *(("grid", node, "", 0.0) for node in ("first", "second", "third")),
    ]
    return _drawn(boxes, arrows, 11.1, 3.9)


def serving(_: Path) -> Figure:
    """From a run's folder to the answer for a client that comes later."""
    boxes: dict[str, Box] = {
        "run": (1.1, 1.1, 1.6, HERE, "run folder"),
        "bundle": (3.6, 1.1, 1.6, HERE, "bundle.zip"),
        "service": (6.1, 1.1, 1.6, HERE, "service\nover HTTP"),
        "client": (11.2, 1.1, 2.4, THERE, "client or browser:\ndescribes and scores\nits own data"),
    }
    arrows: list[Arrow] = [
        ("run", "bundle", "export", 0.0),
        ("bundle", "service", "serve", 0.0),
        ("service", "client", "1. extractor, moments of clusters", 0.3),
        ("client", "service", "2. a score a cluster", 0.0),
        ("service", "client", "3. posterior, novelty; models", -0.3),
    ]
    return _drawn(boxes, arrows, 12.6, 2.2)


def library(_: Path) -> Figure:
    """FLUX in a loop of one's own: what a client computes, what the server computes, what passes between them."""
    boxes: dict[str, Box] = {
        "bounds": (1.3, 2.85, 2.0, THERE, "Describer.bounds\nof latents"),
        "extractor": (2.9, 0.9, 2.3, HERE, "FluxClustering.extractor\nwhat all describe by"),
        "describe": (4.9, 2.85, 2.0, THERE, "Describer.describe\nmoments by class"),
        "fit": (6.8, 0.9, 2.1, HERE, "FluxClustering.fit\nclusters, an offer"),
        "scores": (8.8, 2.85, 2.2, THERE, "Describer.scores\na number a cluster"),
        "proba": (10.4, 0.9, 2.3, HERE, "predict_proba\nthe newcomer’s cluster"),
    }
    names = list(boxes)
    arrows: list[Arrow] = [(one, other, "", 0.0) for one, other in pairwise(names)]
    figure = _drawn(boxes, arrows, 11.9, 3.7)
    for height, words, colour in ((0.94, "at each client: records and latents stay here", THERE),
                                  (0.03, "at the server: small arrays arrive", HERE)):  # fmt: skip
        figure.text(0.02, height, words, fontsize=9, color=colour, va="center")
    return figure


def own_data(_: Path) -> Figure:
    """What becomes of one's own data: a federation, a run, and what a run is good for."""
    sources = ("arrays and tables", "CSV file", ".npz file", "folders of images", "Hugging Face dataset")
    boxes: dict[str, Box] = {
        words: (1.4, 3.4 - 0.68 * k, 2.2, PALE, words) for k, words in enumerate(sources)
    }  # fmt: skip
    boxes |= {
        "federation": (4.9, 2.04, 2.2, THERE, "Federation\nclients by name,\ninputs scaled, labels named"),
        "run": (7.8, 2.04, 1.5, HERE, "fedflux.run\nyour model or ours"),
        "result": (10.4, 2.04, 1.9, HERE, "result\ncluster and accuracy\nof every client"),
    }
    arrows: list[Arrow] = [(words, "federation", "", 0.0) for words in sources]
    arrows += [("federation", "run", "", 0.0), ("run", "result", "", 0.0)]
    return _drawn(boxes, arrows, 11.6, 4.0)


def after_training(_: Path) -> Figure:
    """What a run's folder answers, and whom."""
    boxes: dict[str, Box] = {
        "folder": (1.3, 2.0, 1.8, HERE, "run folder\nevery file vouched\nfor by its digest"),
        "load": (4.0, 2.0, 1.8, HERE, "fedflux.load"),
        "assign": (8.2, 3.5, 4.4, THERE, "assign(x): the newcomer’s cluster, or none"),
        "predict": (8.2, 2.5, 4.4, THERE, "predict(x): probabilities of classes"),
        "model": (8.2, 1.5, 4.4, THERE, "model(client): a network that takes raw inputs"),
        "bundle": (8.2, 0.5, 4.4, PALE, "fedflux export: files that need no fedflux"),
    }
    arrows: list[Arrow] = [("folder", "load", "", 0.0), *(("load", name, "", 0.0) for name in list(boxes)[2:])]
    return _drawn(boxes, arrows, 10.7, 4.0)


def _drawn(boxes: dict[str, Box], arrows: list[Arrow], width: float, height: float) -> Figure:
    scale = 9.6 / width
    figure = page(9.6, height * scale)
    axes = place(figure, 0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(0, height), xticks=[], yticks=[])
    axes.axis("off")
    for one, other, words, moved in arrows:
        _arrow(axes, boxes[one], boxes[other], words, moved)
    for x, y, wide, colour, words in boxes.values():
        high = _height(words)
        corner = (x - wide / 2, y - high / 2)
        shape = "round,pad=0,rounding_size=0.12"
        frame = FancyBboxPatch(corner, wide, high, boxstyle=shape, facecolor="white", edgecolor=colour, linewidth=1.6)
        frame.set_zorder(3)
        axes.add_patch(frame)
        axes.text(x, y, words, ha="center", va="center", fontsize=9, color=INK, zorder=4, linespacing=1.35)
    return figure


def _arrow(axes: Axes, one: Box, other: Box, words: str, moved: float) -> None:
    """From the edge of a box to that of another; `moved` up, or down with its words below."""
    (x1, y1, wide1, _, words1), (x2, y2, wide2, _, words2) = one, other
    if abs(x2 - x1) > (wide1 + wide2) / 2:
        side = 1 if x2 > x1 else -1
        start, end = (x1 + side * wide1 / 2, y1), (x2 - side * wide2 / 2, y2)
    else:
        side = 1 if y2 > y1 else -1
        start, end = (x1, y1 + side * _height(words1) / 2), (x2, y2 - side * _height(words2) / 2)
    start, end = (start[0], start[1] + moved), (end[0], end[1] + moved)
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": WARM, "linewidth": 1.3, "shrinkA": 2,
                                              "shrinkB": 2}, zorder=2)  # fmt: skip
    below = moved < 0
    axes.text((start[0] + end[0]) / 2, start[1] + (-0.06 if below else 0.06), words, ha="center",
              va="top" if below else "bottom", fontsize=8, color=INK)  # fmt: skip


def _height(words: str) -> float:
    """Of a box with so many lines."""
    return 0.3 + 0.24 * (1 + words.count("\n"))
