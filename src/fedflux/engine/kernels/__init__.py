"""Fused layers, and chains of layers trained without autograd."""
