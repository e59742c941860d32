"""One writer at a time commits to a table on a disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from engagement_platform.lake.commit_lock import TableBusy, commit_lock


def test_writers_of_a_table_take_turns_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    entered: list[str] = []
    with commit_lock(str(tmp_path), "engagement/data"):
        with (
            pytest.raises(TableBusy, match="engagement/data"),
            commit_lock(str(tmp_path), "engagement/data", patience_s=0.05),
        ):
            entered.append("second")
        with commit_lock(str(tmp_path), "engagement/mapping", patience_s=0.05):
            entered.append("other table")

        def wait() -> None:
            with commit_lock(str(tmp_path), "engagement/data"):
                entered.append("third")

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        assert entered == ["other table"]
    waiting.join(timeout=10)
    assert entered == ["other table", "third"]
