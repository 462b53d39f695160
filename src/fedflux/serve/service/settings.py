"""How a service is set up: `fedflux serve`'s flags."""

from dataclasses import dataclass
from pathlib import Path

from fedflux.errors import FedfluxError

AUDIT_FILE = "audit.sqlite"
HERE = ("127.0.0.1", "::1", "localhost")
"""Addresses that only this machine reaches."""


@dataclass(frozen=True)
class ServiceSettings:
    """Where it listens, what it keeps, and what it lets in."""

    bundle: Path
    state: Path
    """Folder of the API keys and the audit log."""
    host: str = "127.0.0.1"
    port: int = 8080
    trust: Path | None = None
    """Public key of who signs bundles; others are refused."""
    certificate: Path | None = None
    private_key: Path | None = None
    origins: tuple[str, ...] = ()
    """Web pages of other hosts that may ask."""
    most_bytes: int = 16 * 2**20
    """Of a request's body."""
    most_records: int = 4096
    """Of one request."""

    def check(self, keys: int) -> None:
        """Refuse what would leave the door open, or cannot work."""
        if self.host not in HERE and not keys:
            words = "anybody who reaches it could ask: fedflux keys add NAME makes the first key"
            raise FedfluxError(f"--host {self.host} without API keys: {words}")
        if (self.certificate is None) != (self.private_key is None):
            raise FedfluxError("TLS needs both --tls-certificate and --tls-key")
        for path in (self.certificate, self.private_key):
            if path is not None and not path.is_file():
                raise FedfluxError(f"there is no file {path}")
        if not 0 <= self.port <= 65535:
            raise FedfluxError(f"--port {self.port}: give 0 to 65535")
