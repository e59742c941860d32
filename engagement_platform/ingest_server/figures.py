"""What the server counts, for Prometheus. Names and labels are a contract; nothing of an event is in them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Around the goal of 50 ms for the 99th percentile.
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Figures:
    """One server's figures."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("ingest_requests", "Requests by status.", ["status"], registry=registry)
        self.events = Counter("ingest_events", "Events acknowledged.", ["game", "outcome"], registry=registry)
        self.refused = Counter("ingest_refused", "Events refused, by reason.", ["reason_code"], registry=registry)
        self.not_kept = Counter(
            "ingest_refused_not_kept", "Refused events beyond the quota.", ["game"], registry=registry
        )
        self.found = Counter(
            "pii_found", "Undeclared fields that look like personal data.", ["kind"], registry=registry
        )
        self.values = Counter("pii_values", "Declared values taken out of events.", ["outcome"], registry=registry)
        self.delivered = Counter("ingest_delivered", "Events delivered, by outcome.", ["outcome"], registry=registry)
        self.objects = Counter("ingest_segments_delivered", "Segments of the spool delivered.", registry=registry)
        self.seconds = Histogram(
            "ingest_request_seconds", "From a request's first byte to its answer.", registry=registry, buckets=_SECONDS
        )

    def gauge(self, name: str, what: str, ask: Callable[[], float]) -> None:
        """One more figure, which is asked for when they are read."""
        Gauge(name, what, registry=self._registry).set_function(ask)

    def text(self) -> bytes:
        """All figures as Prometheus reads them."""
        return generate_latest(self._registry)
