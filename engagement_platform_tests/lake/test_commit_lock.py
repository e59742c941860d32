"""One writer at a time commits to a table on a disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engagement_platform.lake.commit_lock import TableBusy, commit_lock

HOLDS = """\
import sys
from engagement_platform.lake.commit_lock import commit_lock
with commit_lock(sys.argv[1], "engagement/data"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_stopped_process_keeps_a_table_and_another_one_refuses_until_it_goes_on(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with (
            pytest.raises(TableBusy, match="Nothing was written"),
            commit_lock(str(tmp_path), "engagement/data", patience_s=0.2),
        ):
            raise AssertionError("two hold the same table")
        holder.send_signal(signal.SIGCONT)
        holder.communicate("go on\n", timeout=60)
        assert holder.returncode == 0
        with commit_lock(str(tmp_path), "engagement/data", patience_s=0.2):
            pass
    finally:
        holder.kill()
        holder.wait()


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
