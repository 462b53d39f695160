"""Figures for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """Of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("fedflux_requests", "Requests", ("route", "status"), **own)
        self.seconds = Histogram("fedflux_request_seconds", "Seconds a request", ("route",), buckets=BUCKETS, **own)
        self.assigned = Counter("fedflux_assigned", "Clients placed", ("cluster",), **own)
        self.novel = Counter("fedflux_novel", "Clients like no cluster", **own)
        self.records = Counter("fedflux_records", "Records predicted for", ("model",), **own)
        self.reloads = Counter("fedflux_reloads", "Bundles loaded or refused", ("outcome",), **own)
        self.evidence = Gauge("fedflux_drift_evidence", "Evidence that clients drift; an alarm at 100,000", **own)
        self.retrain = Gauge("fedflux_retrain", "1 once clients have drifted away from the bundle", **own)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)
