"""Colours of clusters and algorithms, the same in the page and in exported figures."""

FEW = ["#1a80c4", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a8f98", "#d6c400"]
"""Okabe and Ito's, safe for colour-blind readers: blue lightened for dark paper, black made grey, yellow last."""
MANY = [
    *FEW,
    *("#7b4fb5", "#9c5a1a", "#2fb9b0", "#c2185b", "#6b8e23", "#f48a6f", "#3f51b5", "#a0c000"),
    *("#b08ad9", "#00695c", "#e05780", "#b8860b", "#5c7a99", "#f000f0", "#4caf50", "#d08fb8"),
    *("#00d000", "#7040f0", "#f00030", "#d010a0", "#c0b080", "#e070f0", "#607040", "#906050"),
    *("#c04030", "#90c080", "#0060f0", "#a04090", "#b0b0e0", "#806090", "#c0b050", "#b020c0"),
]
"""For more than eight, as many as clusters are listed. From the 25th on each is the colour of middling lightness that
is farthest from those before it.
"""


def palette(count: int) -> list[str]:
    """One colour for each of so many things."""
    colours = FEW if count <= len(FEW) else MANY
    return [colours[place % len(colours)] for place in range(count)]
