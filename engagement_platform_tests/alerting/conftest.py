"""A database, a clock that tests move, and real receivers of webhooks on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.engine.conftest import clock, engine, postgres, store_url

__all__ = ["clock", "engine", "postgres", "store_url"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening
