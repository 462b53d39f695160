"""Descriptors with differential privacy: what is released, and what it costs."""
