"""Commits that are one transaction of the stores, which ends before it is over, and is given again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData

from engagement_platform.engine import stores
from engagement_platform.engine.database import open_engine, reading, writing
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.pipelines.games import live_ops_store
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform_tests.engine.test_stores import JOB, manifest
from engagement_platform_tests.pipelines.games.counted import groups
from engagement_platform_tests.pipelines.games.test_players import BEGIN


@contextmanager
def ends(*given: Any) -> Iterator[Connection]:
    """A transaction of a process that is gone before it is over."""
    with writing(*given) as connection:
        yield connection
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "does"),
    [
        (stores, lambda checkpoints, _: checkpoints.fail(manifest(), "the broker went away")),
        (stores, lambda checkpoints, _: checkpoints.reset(JOB)),
        (live_ops_store, lambda _, figures: figures.forget(BEGIN + timedelta(days=1), BEGIN + timedelta(days=1))),
    ],
    ids=["fail", "reset", "forget"],
)
def test_a_transaction_that_ends_before_it_is_over_changes_nothing_and_is_done_by_the_same_call(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: ModuleType,
    does: Callable[[CheckpointStore, LiveOpsStore], object],
) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    checkpoints, figures = CheckpointStore(engine), LiveOpsStore(engine)
    checkpoints.begin(manifest())
    login = {"game_id": "g1", "event_ts": BEGIN, "player_id": "p1", "session_id": "s1"}
    figures.add("job", 0, groups([("login", login)]), BEGIN)

    def rows() -> dict[str, list[tuple[object, ...]]]:
        found = MetaData()
        with reading(engine) as connection:
            found.reflect(connection)
            return {name: [tuple(row) for row in connection.execute(of.select())] for name, of in found.tables.items()}

    before = rows()
    with monkeypatch.context() as patched:
        patched.setattr(module, "writing", ends)
        with pytest.raises(KeyboardInterrupt):
            does(checkpoints, figures)
    assert rows() == before
    does(checkpoints, figures)
    assert rows() != before
