"""Two starts on one home folder keep out of each other's way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from engagement_platform.engine.database import open_engine
from engagement_platform.local.home import HomeInUse, locked_home

HOLD = """
    import pathlib, sys
    from engagement_platform.local.home import locked_home
    with locked_home(pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_home_in_use_is_refused_with_its_holder_and_free_again_when_that_ended(tmp_path: Path, killed: bool) -> None:
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HomeInUse, match=f"process {holder.pid}.*ENGAGEMENT_PLATFORM_HOME"), locked_home(tmp_path):
            pass
        assert holder.stdin is not None
        if killed:
            holder.kill()
        holder.stdin.close()
    with locked_home(tmp_path):
        assert (tmp_path / "embedded.lock").read_text() == str(os.getpid())


FULL = """
    import pathlib, resource, sys
    from engagement_platform.errors import PlatformError
    from engagement_platform.local.home import locked_home
    # Writing fails as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        with locked_home(pathlib.Path(sys.argv[1])):
            print("held")
    except PlatformError as error:
        print(error)
"""


def test_a_home_that_nothing_can_be_written_to_is_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"{tmp_path} cannot hold local state: File too large.")


@pytest.mark.parametrize("first", ["services", "stores"])
def test_a_home_is_made_for_its_owner_only_whatever_the_umask(tmp_path: Path, first: str) -> None:
    home, before = tmp_path / "home", os.umask(0)
    try:
        if first == "services":
            with locked_home(home):
                pass
        else:
            open_engine(f"sqlite:///{home / 'stores.db'}").dispose()
    finally:
        os.umask(before)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", ["up", "services"])
@pytest.mark.parametrize("folder", ["homes, mine", "#1"])
def test_a_home_whose_name_no_lake_can_have_is_refused_before_anything_starts(
    tmp_path: Path, command: str, folder: str
) -> None:
    home = tmp_path / folder
    env = {**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(home)}
    run = subprocess.run(
        [sys.executable, "-m", "engagement_platform.cli", command],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "The lake cannot be in" in run.stderr
    assert not home.exists()
