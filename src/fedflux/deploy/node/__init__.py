"""What a node is and does, whoever carries its questions: its data, its memory, and its answers."""

from fedflux.deploy.node.data import NodeData

__all__ = ["NodeData"]
