"""What the chain's benchmark calls a wait, and what it holds the tables against. Without Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.chain_latency import BEGIN, DAY, GAP, LATE, Commit, Views, closing_waits, days_of, sessions_of
from engagement_platform_tests.pipelines.page_views.oracle import Chain

HOUR = timedelta(hours=1)


def test_a_row_waits_from_the_commit_that_closed_it_and_no_other() -> None:
    source = [Commit(at, [{"viewed_at": BEGIN + hours * HOUR}]) for at, hours in ((10.0, 1), (20.0, 5), (30.0, 9))]
    closed_by_second = BEGIN + 5 * HOUR - LATE
    assert closing_waits(source, "viewed_at", [(21.5, closed_by_second)]) == [1.5]
    assert closing_waits(source, "viewed_at", [(33.0, closed_by_second + timedelta(microseconds=1))]) == [3.0]
    with pytest.raises(AssertionError, match="was written before that"):
        closing_waits(source, "viewed_at", [(40.0, BEGIN + 9 * HOUR)])


def test_the_loops_find_the_sessions_and_days_that_the_chains_oracle_finds() -> None:
    dice = random.Random(4)
    times = sorted(BEGIN + timedelta(milliseconds=dice.randrange(3 * 86_400_000)) for _ in range(400))
    views = [(f"u{dice.randrange(9)}", at) for at in times]
    chain = Chain(GAP, LATE)
    chain.drain(views)
    assert sessions_of(views) == sorted(chain.sessions)
    assert days_of(sessions_of(views)) == [(day, sessions, viewed) for day, sessions, viewed, _ in chain.days()]
    assert len(chain.days()) == 2


def test_views_come_in_the_order_of_their_times_and_days_go_by() -> None:
    views = Views()
    assert len(list(views.messages(100, 24, users=10, speed=7_200))) == len(views.said) == 2_400
    times = [at for _, at in views.said]
    assert times == sorted(times)
    assert times[-1] - BEGIN > 1.9 * DAY
    assert all(at.microsecond % 1000 == 0 and at.tzinfo == UTC for at in times)
    assert datetime.fromtimestamp(views.handed[0], UTC) <= datetime.fromtimestamp(views.handed[-1], UTC)
