"""The two apps that Flower starts; both are fedflux's."""

from fedflux.deploy.flower.client_app import app as client
from fedflux.deploy.flower.server_app import app as server

__all__ = ["client", "server"]
