"""Commits that are one transaction of the stores, which ends before it is over, and is given again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData

from engagement_platform.alerting import alerts
from engagement_platform.alerting.alerts import Alerts
from engagement_platform.alerting.model import Alert, Severity
from engagement_platform.engine import cursors, database, forgotten_batches, stores
from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.engine.database import ensure_tables, open_engine, reading, writing
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.ingest_server import keys
from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.maintenance.guards import foreign_commits
from engagement_platform.pipelines.games import live_ops_store
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform.settings import AlertingSettings
from engagement_platform.sources import s3_sqs_state
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs_state import Arrived, S3SqsState
from engagement_platform_tests.conformance.points import ELSEWHERE
from engagement_platform_tests.engine.test_forgotten_batches import land
from engagement_platform_tests.engine.test_stores import JOB, manifest
from engagement_platform_tests.pipelines.games.counted import groups
from engagement_platform_tests.pipelines.games.test_players import BEGIN

DAY = timedelta(days=1)
FILES = tuple(S3File("bucket", f"{name}.json") for name in "abcd")


@contextmanager
def ends(*given: Any) -> Iterator[Connection]:
    """A transaction of a process that is gone before it is over."""
    with writing(*given) as connection:
        yield connection
        raise KeyboardInterrupt


def alerting(engine: Engine) -> Alerts:
    return Alerts(engine, AlertingSettings())


def alert(key: str) -> Alert:
    return Alert(key, Severity.WARNING, "late", "It is late.", "run", BEGIN, {})


def ingest_keys(engine: Engine) -> IngestKeys:
    return IngestKeys(engine.url.render_as_string())


def state(engine: Engine) -> S3SqsState:
    return S3SqsState(engine, allow_overwrites=False)


def fill(engine: Engine) -> None:
    """Whatever one of DONE needs to be there before."""
    checkpoints = CheckpointStore(engine)
    checkpoints.begin(manifest())
    for minute in range(3):
        land(checkpoints, minute, "apply-mutations")
    login = {"game_id": "g1", "event_ts": BEGIN, "player_id": "p1", "session_id": "s1"}
    LiveOpsStore(engine).add("job", 0, groups([("login", login)]), BEGIN)
    alerting(engine).raised(alert("one"))
    CursorStore(engine).begin("lake", "scoring", {"version": 3})
    StreamCheckpoints(engine).claim("scores", "/checkpoints/scores")
    ingest_keys(engine).add("puzzle")
    state(engine).arrive("stream", [Arrived("m", "receipt", 0, FILES)])
    state(engine).plan("stream", 0, None)


DONE: Mapping[str, tuple[ModuleType, Callable[[Engine], object]]] = {
    "alerting.alerts.Alerts.raised": (alerts, lambda engine: alerting(engine).raised(alert("other"))),
    "alerting.alerts.Alerts.recovered": (alerts, lambda engine: alerting(engine).recovered("one")),
    "engine.cursors.CursorStore.begin": (cursors, lambda engine: CursorStore(engine).begin("lake", "new", {})),
    "engine.cursors.CursorStore.forget": (cursors, lambda engine: CursorStore(engine).forget("lake", "scoring")),
    "engine.cursors.StreamCheckpoints.forget": (cursors, lambda engine: StreamCheckpoints(engine).forget("scores")),
    "engine.database.ensure_tables": (database, lambda engine: ensure_tables(engine, foreign_commits.METADATA)),
    "engine.forgotten_batches._forget_some": (
        forgotten_batches,
        lambda engine: forgotten_batches.forget(engine, timedelta(0), BEGIN + DAY),
    ),
    "engine.stores.CheckpointStore.draw_after": (stores, lambda engine: CheckpointStore(engine).draw_after(100)),
    "engine.stores.CheckpointStore.fail": (
        stores,
        lambda engine: CheckpointStore(engine).fail(CheckpointStore(engine).unfinished()[0].manifest, "it went away"),
    ),
    "engine.stores.CheckpointStore.reset": (stores, lambda engine: CheckpointStore(engine).reset(JOB)),
    "ingest_server.keys.IngestKeys.add": (keys, lambda engine: ingest_keys(engine).add("racing")),
    "ingest_server.keys.IngestKeys.revoke": (
        keys,
        lambda engine: ingest_keys(engine).revoke(ingest_keys(engine).all()[0].key_id),
    ),
    "pipelines.games.live_ops_store.LiveOpsStore.forget": (
        live_ops_store,
        lambda engine: LiveOpsStore(engine).forget(BEGIN + DAY, BEGIN + DAY),
    ),
    "pipelines.games.live_ops_store.LiveOpsStore.reset": (
        live_ops_store,
        lambda engine: LiveOpsStore(engine).reset("recount", [("job", 0)]),
    ),
    "sources.s3_sqs_state.S3SqsState.renew": (
        s3_sqs_state,
        lambda engine: state(engine).renew("stream", FILES[:2]),
    ),
    "sources.s3_sqs_state.S3SqsState.split": (s3_sqs_state, lambda engine: state(engine).split("stream", 1)),
}
"""Function that commits -> its module, and a call that makes it do so once."""


def test_each_commit_that_points_here_is_tried_here() -> None:
    named = test_a_transaction_that_ends_before_it_is_over_changes_nothing_and_is_done_by_the_same_call.__name__
    assert {point for each in ELSEWHERE if each.test.endswith(f"::{named}") for point in each.points} == set(DONE)
    for point, (module, _) in DONE.items():
        assert point.startswith(f"{module.__name__.removeprefix('engagement_platform.')}.")


@pytest.mark.parametrize("point", DONE)
def test_a_transaction_that_ends_before_it_is_over_changes_nothing_and_is_done_by_the_same_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    engine, (module, does) = open_engine(f"sqlite:///{tmp_path / 'stores.db'}"), DONE[point]
    fill(engine)

    def rows() -> dict[str, list[tuple[object, ...]]]:
        found = MetaData()
        with reading(engine) as connection:
            found.reflect(connection)
            return {name: [tuple(row) for row in connection.execute(of.select())] for name, of in found.tables.items()}

    before = rows()
    with monkeypatch.context() as patched:
        patched.setattr(module, "writing", ends)
        with pytest.raises(KeyboardInterrupt):
            does(engine)
    assert rows() == before
    does(engine)
    assert rows() != before
