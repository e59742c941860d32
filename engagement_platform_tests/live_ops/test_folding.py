"""Figures and features against loops over the events, whatever order and batches they come in."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.engine.database import open_engine
from engagement_platform.live_ops.figures import KPI_SCHEMA, grids
from engagement_platform.live_ops.folding import EVENT_SCHEMA, MinuteState, PlayerState
from engagement_platform.live_ops.players import Features, PlayerFeatures

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
Event = dict[str, Any]

EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "game_id": st.sampled_from(["g1", "g2"]),
            "event_ts": st.integers(0, 5 * 60).map(lambda s: BEGIN + timedelta(seconds=s)),
            "event_type": st.sampled_from(["purchase", "crash", "login"]),
            "player_id": st.sampled_from([None, "p1", "p2"]),
            "session_id": st.sampled_from([None, "s1", "s2"]),
            "revenue": st.sampled_from([None, 0.1, 4.99]),
            "level": st.sampled_from([None, 3, 7]),
        }
    ),
    max_size=25,
)


def table(events: list[Event]) -> pa.Table:
    return pa.Table.from_pylist(events, EVENT_SCHEMA)


def counted(events: list[Event]) -> list[Event]:
    """Figures as a loop over the events finds them."""
    by: dict[tuple[str, datetime], list[Event]] = defaultdict(list)
    for event in events:
        by[event["game_id"], event["event_ts"].replace(second=0)].append(event)
    return [
        {
            "game": game, "minute": minute, "events": len(ours),
            "players": len({e["player_id"] for e in ours} - {None}),
            "purchases": sum(e["event_type"] == "purchase" for e in ours),
            "revenue": sum(round((e["revenue"] or 0) * 1e6) for e in ours if e["event_type"] == "purchase") / 1e6,
            "errors": sum(e["event_type"] == "crash" for e in ours),
        }
        for (game, minute), ours in sorted(by.items())
    ]  # fmt: skip


def seen(events: list[Event], player: str, now: datetime) -> Features | None:
    """Features of a player of g1 as a loop over the events finds them."""
    ours = [e for e in events if (e["game_id"], e["player_id"]) == ("g1", player)]
    if not ours:
        return None
    sessions: dict[str, list[datetime]] = defaultdict(list)
    for event in ours:
        if event["session_id"]:
            sessions[event["session_id"]].append(event["event_ts"])
    lengths = [(max(times) - min(times)).total_seconds() for times in sessions.values()]
    return Features(
        recency_s=(now - max(e["event_ts"] for e in ours)).total_seconds(),
        frequency_per_day=len(sessions) / max(1.0, (now - min(e["event_ts"] for e in ours)) / timedelta(days=1)),
        spend=sum(round((e["revenue"] or 0) * 1e6) for e in ours if e["event_type"] == "purchase") / 1e6,
        level=max(e["level"] or 0 for e in ours),
        mean_session_s=sum(lengths) / len(lengths) if lengths else 0.0,
    )


def rows(state: MinuteState | PlayerState) -> list[list[str]]:
    return [sorted(map(repr, one.to_pylist())) for one in vars(state).values()]


@settings(deadline=None, max_examples=40)
@given(EVENTS, st.randoms(use_true_random=False), st.integers(0, 25), st.integers(0, 25))
def test_any_order_and_any_batches_make_the_state_of_one_batch(
    events: list[Event], random: Any, a: int, b: int
) -> None:
    shuffled = random.sample(events, len(events))
    first, second = sorted((min(a, len(events)), min(b, len(events))))
    parts = [table(part) for part in (shuffled[:first], shuffled[first:second], shuffled[second:])]
    kinds: tuple[Any, Any] = (MinuteState, PlayerState)
    for kind in kinds:
        whole = kind.empty().fold(table(events))
        one, two, three = (kind.empty().fold(part) for part in parts)
        assert rows(kind.empty().fold(parts[0]).fold(parts[1]).fold(parts[2])) == rows(whole)
        assert (
            rows(one.merge(two).merge(three)) == rows(one.merge(two.merge(three))) == rows(three.merge(two).merge(one))
        )
    figures = MinuteState.empty().fold(table(events)).figures()
    assert figures.schema == KPI_SCHEMA
    assert figures.to_pylist() == counted(events)


@settings(deadline=None, max_examples=10)
@given(EVENTS, st.integers(0, 25))
def test_features_are_what_a_loop_finds_and_a_batch_counts_once(
    tmp_path_factory: Any, events: list[Event], cut: int
) -> None:
    features = PlayerFeatures(open_engine(f"sqlite:///{tmp_path_factory.mktemp('features') / 'stores.db'}"))
    for batch_id, part in enumerate((events[:cut], events[cut:])):
        batch = PlayerState.empty().fold(table(part))
        assert features.add("games", batch_id, batch)
        assert not features.add("games", batch_id, batch)
    now = BEGIN + timedelta(days=3)
    for player in ("p1", "p2", "unknown"):
        assert features.read("g1", player, now) == seen(events, player, now)


def test_a_player_among_many_is_read_in_less_than_fifty_milliseconds(tmp_path: Path) -> None:
    features = PlayerFeatures(open_engine(f"sqlite:///{tmp_path / 'stores.db'}"))
    events = [
        {"game_id": "g1", "event_ts": BEGIN + timedelta(minutes=n % 900), "event_type": "login",
         "player_id": f"p{n % 5000}", "session_id": f"s{n}", "revenue": None, "level": n % 40}
        for n in range(20_000)
    ]  # fmt: skip
    features.add("games", 0, PlayerState.empty().fold(table(events)))
    took = []
    for n in range(100):
        began = time.process_time()
        found = features.read("g1", f"p{n * 37 % 5000}", BEGIN + timedelta(days=1))
        took.append(time.process_time() - began)
        assert found is not None
    assert sorted(took)[-5] < 0.05, "of a hundred reads five may be interrupted"
    assert features.forget("g1", "p1")
    assert features.read("g1", "p1", BEGIN) is None
    assert features.forget_sessions(BEGIN + timedelta(days=9)) == 20_000 - 4


def test_minutes_that_are_final_are_let_go_and_a_minute_without_events_is_a_zero() -> None:
    at = [BEGIN, BEGIN + timedelta(minutes=3)]
    events = [dict(zip(EVENT_SCHEMA.names, ("g1", ts, "login", "p1", None, None, None), strict=True)) for ts in at]
    state = MinuteState.empty().fold(table(events))
    [grid] = grids(state.figures(), BEGIN, BEGIN + timedelta(minutes=5))
    assert grid.values["players"].tolist() == [1, 0, 0, 1, 0]
    later = state.since(int(at[1].timestamp()) // 60)
    assert later.figures()["minute"].to_pylist() == [at[1]]
    assert later.seen.num_rows == 1
    [silent] = grids(later.figures(), BEGIN, BEGIN + timedelta(minutes=5), ["g9"])
    assert silent.values["events"].sum() == 0
