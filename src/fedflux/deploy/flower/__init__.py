"""FLUX on Flower: the same federation across real machines.

Needs the extra `flower`. The two apps are `fedflux.deploy.flower.server_app:app` and
`fedflux.deploy.flower.client_app:app`.
"""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError("fedflux.deploy.flower needs Flower: pip install 'fedflux[flower]'")
