"""The version of fedflux, where every room can read it."""

__version__ = "0.2.0.dev0"
