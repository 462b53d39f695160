"""The model card of a bundle, in Markdown: what it is made of, how good it is, and what it tells about people."""

from collections.abc import Mapping
from typing import Any

LISTED = 10
"""Pairs of clusters whose difference is told."""


def model_card(card: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """From the bundle's card and the result of its run."""
    run = card["run"]
    parts = [
        _title(card),
        _section("What it is for", _purpose(card)),
        _section("Data", _data(card)),
        _section("Shift found", _shift(card, result)),
        _section("Accuracy" if not card["several_labels"] else str(card["score"]), _accuracy(run)),
        _section("Known limits", _limits(card)),
        _section("Privacy", _privacy(card)),
        _section("Files", _files()),
    ]
    return "\n\n".join(parts) + "\n"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _section(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines)


def _title(card: Mapping[str, Any]) -> str:
    run = card["run"]
    return f"# {_counted(len(card['clusters']), 'cluster')} of {run['dataset']}\n\nMade by fedflux {card['fedflux']}."


def _purpose(card: Mapping[str, Any]) -> list[str]:
    names = ", ".join(card["class_names"][:20]) + (", …" if len(card["class_names"]) > 20 else "")
    shape = "×".join(map(str, card["input"]["shape"]))
    return [
        "It gives a client that nobody has seen, and that has no labels, the models that fit its data.",
        f"- Inputs: {shape} ({card['input']['kind']}; scaling `{card['scaling']['kind']}` is part of the models).",
        f"- {'Labels, of which a record may have several or none' if card['several_labels'] else 'Classes'}: {names}.",
    ]


def _data(card: Mapping[str, Any]) -> list[str]:
    run, left = card["run"], card["left_out"]
    lines = [f"- {card['clients']} clients trained it with `{run['algorithm']}`."]
    if run["shift"] and run["shift"] != "none":
        lines.append(f"- Their data were made to differ: `{run['shift']}`, level {run['level']}.")
    lines += [f"- {one['name']}: {_counted(one['members'], 'client')}." for one in card["clusters"]]
    if left:
        lines.append(f"- {_counted(left, 'cluster')} too small to be offered: neither moments nor models are here.")
    return lines


def _shift(card: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    if len(card["clusters"]) + card["left_out"] < 2:
        return ["None: all clients are in one cluster."]
    offered = {one["number"] for one in card["clusters"]}
    words = [pair["words"] for pair in result.get("why") or () if offered.issuperset(pair["clusters"])]
    lines = [f"- {one[:1].upper()}{one[1:]}." for one in words[:LISTED]]
    lines += [f"- … and {len(words) - LISTED} pairs more."] if len(words) > LISTED else []
    kinds = ", ".join(card["shift_found"]) or "no test tells them apart"
    return [f"Clusters differ in: {kinds}.", "", *lines] if lines else [f"Clusters differ in: {kinds}."]


def _accuracy(run: Mapping[str, Any]) -> list[str]:
    words = {
        "known": "clients that trained, on their test part, with the models of their cluster",
        "test": "the same clients, placed from features alone",
        "unseen": "clients that no round met, placed from features alone",
        "worst": "the client that it serves worst",
    }
    lines = [f"- {run[name]:.1f} %: {text}." for name, text in words.items() if isinstance(run[name], int | float)]
    return lines or ["It was not measured."]


def _limits(card: Mapping[str, Any]) -> list[str]:
    lines = [
        "- A posterior says which of these clusters fits best, given that one fits; `novel` says whether any does.",
        f"- Of clients that belong, about {100 * card['placement']['level']:g} % are called novel by chance.",
    ]
    if any("P(Y|X)" in shift for shift in card["shift_found"]):
        lines.append("- Some clusters differ in P(Y|X) alone: features cannot tell those apart.")
    quiet = [one["name"] for one in card["clusters"] if not one["calibrated"]]
    if quiet:
        lines.append(
            f"- Nobody is ever called novel in {', '.join(quiet)}: too little is known of what is usual there."
        )
    lines.append(
        "- It knows the clients of its day. The service's watch says when clients have drifted away from them."
    )
    return lines


def _privacy(card: Mapping[str, Any]) -> list[str]:
    epsilon = card["epsilon"]
    alone = sum(one["members"] <= 1 for one in card["clusters"])
    lines = [
        "- No record and no client's name is in it. Of clients it holds what was pooled over their cluster: means, "
        "spreads and shares of classes in a reduced latent space, and models.",
        "- Models can reveal some of what they were trained on to whoever holds them; the smaller a cluster, the more "
        "of that is about each of its members.",
    ]
    if alone:
        lines.append(
            f"- **Clusters of one member: {alone}.** Their moments and models are that client's alone, and whoever is "
            "placed there learns that its data are like that client's: `--min-members 2` leaves them out."
        )
    told = "were sent without noise" if epsilon is None else f"are differentially private, ε = {epsilon:g}"
    lines.append(f"- Descriptors, from which clusters and moments come, {told}; models were trained without noise.")
    return lines


def _files() -> list[str]:
    return [
        "- `extractor.onnx` makes reduced latents of inputs, `densities.onnx` log-densities of those under every class "
        "of every cluster, `models/*.onnx` scores of classes. All take any number of records.",
        "- The same weights are in `*.safetensors`; `placement.safetensors` holds class moments and what models have "
        "in answers, `bundle.json` everything else.",
        "- `manifest.json` holds the SHA-256 of every file; a file that was changed is refused by name.",
    ]
