"""Nodes, whoever carries messages to them: what they hold, keep and answer, and what a server knows of them."""

from fedflux.deploy.node.data import NodeData

__all__ = ["NodeData"]
