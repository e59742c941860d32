"""What is purged of a store that is a Delta table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engagement_platform.lake import store_tables


@pytest.mark.parametrize(
    ("uri", "asked"),
    [("/home/lake", [(0, True)]), ("file:///home/lake", [(0, True)]), ("s3://bucket/lake", [(0, False), (24, True)])],
)
def test_where_no_lock_keeps_appends_away_files_that_no_log_has_had_stay_for_a_day(
    uri: str, asked: list[tuple[int, bool]]
) -> None:
    called: list[tuple[int, bool]] = []
    found: Any = SimpleNamespace(
        table_uri=uri, vacuum=lambda retention_hours, *, full, **_: called.append((retention_hours, full))
    )
    store_tables.purge(found)
    assert called == asked
