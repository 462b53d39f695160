"""Data of one's own: here each node reads its share of scikit-learn's digits, every other one turned upside down.

A real node would read its own files and ignore `partition-id`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from fedflux.deploy.node import NodeData


def load(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> NodeData:
    """What `data = "own.data:load"` names: images (N, channels, height, width) and labels 0 to 9."""
    number = int(node_config["partition-id"])
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    rows = np.random.default_rng(int(run_config["seed"])).permutation(len(labels))
    mine = np.array_split(rows, int(node_config.get("num-partitions", 10)))[number]
    x, y = images[mine], labels[mine]
    if number % 2:
        x = x[:, :, ::-1, ::-1].copy()
    if not node_config.get("labels", True):
        return NodeData.of(unlabelled=x, classes=10)
    first, second = int(0.6 * len(x)), int(0.8 * len(x))
    return NodeData.of((x[:first], y[:first]), (x[first:second], y[first:second]), (x[second:], y[second:]), classes=10)
