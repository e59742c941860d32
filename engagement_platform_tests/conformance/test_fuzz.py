"""A few examples of all that `make conformance ARGS=fuzz` tries for an hour, the same ones each time."""

from __future__ import annotations

import pytest

from engagement_platform_tests.conformance.fuzz import PROPERTIES, explore
from engagement_platform_tests.conformance.fuzz_http import fuzzed_server


@pytest.mark.parametrize("name", PROPERTIES)
def test_whatever_comes_each_record_is_decoded_or_refused_whole(name: str) -> None:
    assert explore(*PROPERTIES[name], number=1, examples=20) >= 20


@pytest.mark.crash
def test_whatever_is_sent_is_answered_as_described_and_what_is_acknowledged_is_delivered() -> None:
    with fuzzed_server() as server:
        assert len(server.properties) == 4
        for tried in server.properties.values():
            explore(*tried, number=1, examples=20)
        server.finish()
