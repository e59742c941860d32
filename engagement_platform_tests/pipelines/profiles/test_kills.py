"""Jobs of changes killed with SIGKILL and run again, from the command line: the view is the replay at every moment.

That they may end at any point without a kill is `test_ingest` and `test_rematerialize`, which are quicker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from engagement_platform.local.producing import produce
from engagement_platform.local.traffic import Kind, Message
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.settings import KafkaSettings
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.pipelines.profiles.histories import (
    DEVICE,
    PROFILE,
    declared,
    seen_by_rules,
    side_by_side,
)
from engagement_platform_tests.pipelines.profiles.oracle import Said, replay
from engagement_platform_tests.pipelines.profiles.test_rematerialize import POINTS

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

METHOD = "ENGAGEMENT_PLATFORM_REMATERIALIZE__METHOD"


@dataclass
class Landed:
    """One entity of a machine, and all changes that landed in it."""

    machine: Machine
    entity: Entity
    changes: list[Said] = field(default_factory=list)

    @property
    def ingest(self) -> str:
        return f"ingest-{self.entity.name}-changes"

    @property
    def move(self) -> str:
        return f"rematerialize-{self.entity.name}"

    @property
    def broker(self) -> str:
        return self.machine.environment["ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS"]

    def send(self, changes: list[Said]) -> None:
        said = (json.dumps(change.message(self.entity), default=lambda day: day.isoformat()) for change in changes)
        messages = [Message("profile-changes", None, message.encode()) for message in said]
        topics: dict[Kind, str] = {"profile-changes": f"{self.entity.name}-changes"}
        assert produce(KafkaSettings(bootstrap_servers=self.broker), messages, topics=topics).failed == 0
        self.changes += changes

    def assert_seen(self, when: str) -> None:
        assert seen_by_rules(self.machine.lake, self.entity) == replay(self.changes, self.entity), when


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which devices are declared."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "defs").mkdir()
    (folder / "defs" / "defs.yaml").write_text(declared(DEVICE, "device-changes"))
    with started(folder, {"ENGAGEMENT_PLATFORM_DEFS_FOLDER": str(folder / "defs")}) as machine:
        yield machine


@pytest.fixture(scope="module")
def profiles(machine: Machine) -> Landed:
    return Landed(machine, PROFILE)


@pytest.fixture(scope="module")
def devices(machine: Machine) -> Landed:
    """Their topic is made with the others, since they are declared."""
    return Landed(machine, DEVICE)


def assert_seen_wherever_a_move_is_killed(of: Landed, point: str, method: str) -> None:
    """A kill, a batch that lands after it, and the run that finishes what was begun."""
    own = replace(of.machine, environment={**of.machine.environment, METHOD: method})
    first, second = side_by_side(len(of.changes), of.entity, 10, 2)
    of.send(first)
    own.cli("run", of.ingest, "--until-idle")
    own.killed_at(point, of.move)
    of.assert_seen(f"killed at {point}")
    of.send(second)
    own.cli("run", of.ingest, "--until-idle")
    of.assert_seen(f"killed at {point}, and a batch landed")
    own.cli("run", of.move, "--until-idle")
    of.assert_seen(f"killed at {point}, and finished")


KILLED = [point for point in POINTS if point != "manifest:before"]
UNTIL_WRITTEN = KILLED[: KILLED.index("base:recorded") + 1]
"""After these no method differs from another."""


@pytest.mark.parametrize("method", ["overwrite", "merge"])
@pytest.mark.parametrize("point", KILLED)
def test_readers_see_the_replay_wherever_a_move_is_killed_also_after_a_batch_that_lands_then(
    profiles: Landed, point: str, method: str
) -> None:
    assert_seen_wherever_a_move_is_killed(profiles, point, method)


@pytest.mark.parametrize("method", ["overwrite", "replace_where"])
@pytest.mark.parametrize("point", UNTIL_WRITTEN)
def test_readers_of_a_partitioned_base_see_the_replay_wherever_a_move_is_killed(
    devices: Landed, point: str, method: str
) -> None:
    assert_seen_wherever_a_move_is_killed(devices, point, method)


@pytest.mark.parametrize("point", ["manifest:after", "changeset.append:before", "changeset.append:after", "finalized"])
def test_a_batch_whose_job_is_killed_lands_once(profiles: Landed, point: str) -> None:
    [changes] = side_by_side(len(profiles.changes), PROFILE, 10, 1)
    profiles.send(changes)
    profiles.machine.killed_at(point, profiles.ingest)
    profiles.machine.cli("run", profiles.ingest, "--until-idle")
    profiles.assert_seen(f"killed at {point}")
    offsets = profiles.machine.rows("profile/changeset", "partition", "offset")
    assert len(set(offsets)) == len(offsets)
