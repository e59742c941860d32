"""Jobs of changes killed with SIGKILL and run again, from the command line: the view is the replay at every moment.

That they may end at any point without a kill is `test_ingest` and `test_rematerialize`, which are quicker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engagement_platform.merge_on_read.here import current_here
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.merge_on_read.histories import PROFILE, plain, side_by_side
from engagement_platform_tests.merge_on_read.oracle import Said, replay, rows_of
from engagement_platform_tests.merge_on_read.test_rematerialize import POINTS

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

HERE: Mapping[str, str] = {}
MERGE_IN_SPARK = {
    "ENGAGEMENT_PLATFORM_LAYOUT__LIGHT_WRITE_ROWS": "0",
    "ENGAGEMENT_PLATFORM_REMATERIALIZE__METHOD": "merge",
}
INGEST, MOVE = "ingest-profile-changes", "rematerialize-profile"


@dataclass
class Profiles:
    """The profiles of a machine, and all changes that landed in them."""

    machine: Machine
    landed: list[Said] = field(default_factory=list)

    def send(self, changes: list[Said]) -> None:
        file = self.machine.folder / "changes.jsonl"
        file.write_text("".join(json.dumps(change.message(PROFILE)) + "\n" for change in changes))
        self.machine.cli("produce", "--file", str(file), "--topic", "profile-changes")
        self.landed += changes

    def assert_seen(self, when: str) -> None:
        found: list[Any] = plain(current_here(self.machine.lake, PROFILE))
        assert rows_of(found, PROFILE) == replay(self.landed, PROFILE), when


@pytest.fixture(scope="module")
def profiles(machine: Machine) -> Profiles:
    return Profiles(machine)


@pytest.mark.parametrize("variables", [HERE, MERGE_IN_SPARK], ids=["overwrite here", "merge in Spark"])
@pytest.mark.parametrize("point", [point for point in POINTS if point != "manifest:before"])
def test_readers_see_the_replay_wherever_a_move_is_killed_also_after_a_batch_that_lands_then(
    profiles: Profiles, point: str, variables: Mapping[str, str]
) -> None:
    own = replace(profiles.machine, environment={**profiles.machine.environment, **variables})
    first, second = side_by_side(len(profiles.landed), PROFILE, 10, 2)
    profiles.send(first)
    own.cli("run", INGEST, "--until-idle")
    own.killed_at(point, MOVE)
    profiles.assert_seen(f"killed at {point}")
    profiles.send(second)
    own.cli("run", INGEST, "--until-idle")
    profiles.assert_seen(f"killed at {point}, and a batch landed")
    own.cli("run", MOVE, "--until-idle")
    profiles.assert_seen(f"killed at {point}, and finished")


@pytest.mark.parametrize("point", ["manifest:after", "changeset.append:before", "changeset.append:after", "finalized"])
def test_a_batch_whose_job_is_killed_lands_once(profiles: Profiles, point: str) -> None:
    [changes] = side_by_side(len(profiles.landed), PROFILE, 10, 1)
    profiles.send(changes)
    profiles.machine.killed_at(point, INGEST)
    profiles.machine.cli("run", INGEST, "--until-idle")
    profiles.assert_seen(f"killed at {point}")
    offsets = profiles.machine.rows("profile/changeset", "partition", "offset")
    assert len(set(offsets)) == len(offsets)
