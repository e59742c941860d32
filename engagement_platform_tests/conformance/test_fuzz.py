"""A few examples of all that `make conformance ARGS=fuzz` tries for an hour, the same ones each time."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from hypothesis import strategies as st
from schemathesis.core.result import Err, Ok

from engagement_platform_tests.conformance import fuzz
from engagement_platform_tests.conformance.fuzz import PROPERTIES, _answer, _pool, explore
from engagement_platform_tests.conformance.fuzz_http import fuzzed_server, loaded, wrong


@pytest.mark.parametrize("name", PROPERTIES)
def test_whatever_comes_each_record_is_decoded_or_refused_whole(name: str) -> None:
    assert explore(*PROPERTIES[name], number=1, examples=20) >= 20


def test_an_example_that_takes_too_long_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "EXAMPLE_S", 0.05)

    def hangs(_: object) -> None:
        while True:
            time.sleep(0.001)

    with pytest.raises(AssertionError, match="took longer than"):
        explore(st.just(0), hangs, 1, 2)


def test_an_example_that_takes_too_long_fails_when_it_is_over_where_nothing_can_interrupt_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz, "EXAMPLE_S", 0.05)
    raised = list[BaseException]()

    def looks() -> None:
        try:
            explore(st.just(0), lambda _: time.sleep(0.1), 1, 2)
        except AssertionError as error:
            raised.append(error)

    thread = threading.Thread(target=looks)
    thread.start()
    thread.join()
    assert "longer than 0.05 s" in str(raised)


def test_a_process_of_decoders_that_does_not_answer_is_ended_and_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "ANSWER_S", 0.01)
    pool = _pool()
    assert _answer(pool, "Kafka: engagements", 1) == (0, "seed 1: no answer within 0.01 s", False)
    pool.shutdown()


def test_of_a_server_all_that_is_wrong_is_reported() -> None:
    one, other = Counter(a=1, b=1), Counter(b=2)
    assert wrong(0, "", one, one, 0, 0.9) == []
    assert wrong(0, "", one, other, 3, 1.5) == [
        "Counter({'a': 1}) lost, Counter({'b': 1}) too many",
        "/healthz did not answer 3 times",
        "/healthz took 1.5 s",
    ]
    assert [each.partition(":")[0] for each in wrong(1, "Traceback", one, one, 0, 0.0)] == [
        "ended with status 1",
        "its log has a traceback",
    ]


def test_a_server_that_refuses_everything_delivers_all_that_it_has_acknowledged_and_is_wrong() -> None:
    assert wrong(0, "", Counter(), Counter(), 0, 0.0) == ["no event was acknowledged, so none could be lost"]


def test_an_operation_that_cannot_be_read_fails_and_is_not_left_out() -> None:
    assert loaded([Ok("one"), Ok("two")]) == ["one", "two"]
    with pytest.raises(AssertionError, match="cannot be tried: no such reference"):
        loaded([Ok("one"), Err(ValueError("no such reference"))])


@pytest.mark.crash
def test_whatever_is_sent_is_answered_as_described_and_what_is_acknowledged_is_delivered() -> None:
    with fuzzed_server() as server:
        assert len(server.properties) == 4
        for tried in server.properties.values():
            explore(*tried, number=1, examples=20)
        server.finish()
