"""Features of players are what a loop over their events finds, and are read at once among many."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.engine.database import open_engine
from engagement_platform.pipelines.games.figures import grids
from engagement_platform.pipelines.games.live_ops_store import Features, LiveOpsStore
from engagement_platform_tests.growth import cpu_seconds
from engagement_platform_tests.pipelines.games.counted import Event, groups, paid

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["purchase", "crash", "login"]),
        st.fixed_dictionaries(
            {
                "game_id": st.sampled_from(["g1", "g2"]),
                "event_ts": st.integers(0, 5 * 60).map(lambda s: BEGIN + timedelta(seconds=s)),
                "player_id": st.sampled_from([None, "p1", "p2"]),
                "session_id": st.sampled_from([None, "s1", "s2"]),
                "price": st.sampled_from([0.1, 4.99]),
                "currency": st.sampled_from(["USD", "EUR"]),
                "level": st.sampled_from([None, 3, 7]),
            }
        ),
    ),
    max_size=25,
)


def seen(events: list[Event], player: str, now: datetime) -> Features | None:
    """Features of a player of g1 as a loop over the events finds them."""
    ours = [(kind, e) for kind, e in events if (e["game_id"], e["player_id"]) == ("g1", player)]
    if not ours:
        return None
    sessions: dict[str, list[datetime]] = defaultdict(list)
    for _, event in ours:
        if event["session_id"]:
            sessions[event["session_id"]].append(event["event_ts"])
    lengths = [(max(times) - min(times)).total_seconds() for times in sessions.values()]
    first = min(e["event_ts"] for _, e in ours)
    return Features(
        recency_s=(now - max(e["event_ts"] for _, e in ours)).total_seconds(),
        frequency_per_day=len(sessions) / max(1.0, (now - first) / timedelta(days=1)),
        spend=sum(paid(kind, e) for kind, e in ours) / 1e6,
        level=max(e["level"] or 0 for _, e in ours),
        mean_session_s=sum(lengths) / len(lengths) if lengths else 0.0,
    )


@settings(max_examples=10)
@given(EVENTS, st.integers(0, 25))
def test_features_are_what_a_loop_finds_however_events_fall_into_batches(
    tmp_path_factory: Any, events: list[Event], cut: int
) -> None:
    engine = open_engine(f"sqlite:///{tmp_path_factory.mktemp('features') / 'stores.db'}")
    store = LiveOpsStore(engine)
    for batch_id, part in enumerate((events[cut:], events[:cut])):
        if part:
            store.add("job", batch_id, groups(part), BEGIN)
    now = BEGIN + timedelta(days=3)
    for player in ("p1", "p2", "unknown"):
        assert store.player("g1", player, now) == seen(events, player, now)


def test_a_player_among_many_is_read_as_fast_as_one_among_few(tmp_path: Path) -> None:
    def filled(players: int) -> LiveOpsStore:
        store = LiveOpsStore(open_engine(f"sqlite:///{tmp_path / f'{players}.db'}"))
        events = [
            ("login", {"game_id": "g1", "event_ts": BEGIN + timedelta(minutes=n % 900), "player_id": f"p{n % players}",
                       "session_id": f"s{n}", "level": n % 40})
            for n in range(4 * players)
        ]  # fmt: skip
        store.add("job", 0, groups(events), BEGIN)
        return store

    def read(store: LiveOpsStore) -> None:
        for n in range(50):
            assert store.player("g1", f"p{n}", BEGIN + timedelta(days=1)) is not None

    few, store = filled(50), filled(5_000)
    # A hundred times as many players; each was seen four times.
    assert cpu_seconds(lambda: read(store)) < 4 * cpu_seconds(lambda: read(few))
    store.forget(BEGIN, BEGIN + timedelta(days=9))
    without_sessions = store.player("g1", "p1", BEGIN + timedelta(days=1))
    assert without_sessions is not None
    assert without_sessions.frequency_per_day == 0


def test_a_minute_without_events_is_a_zero_and_one_that_is_closed_keeps_its_figures(tmp_path: Path) -> None:
    store = LiveOpsStore(open_engine(f"sqlite:///{tmp_path / 'stores.db'}"))
    until = BEGIN + timedelta(minutes=5)

    def add(batch: int, player: str, *minutes: int) -> list[float]:
        events = [("login", {"game_id": "g1", "event_ts": BEGIN + timedelta(minutes=n), "player_id": player})
                  for n in minutes]  # fmt: skip
        store.add("job", batch, groups(events), BEGIN)
        [grid] = grids(store.figures(BEGIN, until), BEGIN, until, ["g1"])
        players: list[float] = grid.values["players"].tolist()
        return players

    assert add(0, "p1", 0, 3) == [1, 0, 0, 1, 0]
    assert add(1, "p2", 3) == [1, 0, 0, 2, 0]
    store.forget(until, BEGIN)
    assert add(2, "p3", 3) == [1, 0, 0, 2, 0], "who comes later to a closed minute adds to all figures but players"
    [silent] = grids(store.figures(BEGIN, until), BEGIN, until, ["g9"])
    assert silent.values["events"].sum() == 0
