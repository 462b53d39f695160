"""The version of fedflux, where every room can read it.

>>> fedflux.__version__.split(".")[:2]
['0', '2']
"""

__version__ = "0.2.0.dev0"
