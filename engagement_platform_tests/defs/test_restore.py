"""A restore as a run of Dagster: a dry run by default, and the plan is the metadata of the run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from engagement_platform.definitions import defs
from engagement_platform.defs.platform import Platform
from engagement_platform.lake.engagement import data_table
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.conftest import Home
from engagement_platform_tests.defs.test_mutation import engagement
from engagement_platform_tests.defs.test_profile import change
from engagement_platform_tests.pipelines.profiles.histories import seen_by_rules

pytestmark = pytest.mark.broker


def launched(home: Home, **config: Any) -> Any:
    """The plan, as the run's output shows it."""
    job = defs().resolve_job_def("restore_tables")
    result = job.execute_in_process(run_config={"ops": {"restore": {"config": config}}}, instance=home.instance)
    [output] = [event for event in result.all_node_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return output.step_output_data.metadata["plan"].value


@pytest.mark.slow
def test_a_run_shows_the_plan_and_restores_only_when_it_is_told_to(home: Home) -> None:
    home.broker.produce(home.engagements, [(0, None, engagement(number)) for number in range(1, 6)])
    assert home.run("ingest_engagements", [datetime.now(UTC).date()]).success
    data = data_table("liquid")
    both = home.rows(data)
    shown = launched(home, table=data.name, to="1", reason="a bad batch")
    assert shown["boundary"] == "the end of ingest-engagements batch 0"
    assert (shown["deleted"], shown["offsets"][0]["records"]) == (2, 2)
    assert home.rows(data) == both, "a dry run changed something"
    with pytest.raises(dg.Failure, match="Say why in `reason`"):
        launched(home, table=data.name, to="1", dry_run=False)
    assert home.rows(data) == both
    done = launched(home, table=data.name, to="1", reason="a bad batch", dry_run=False)
    assert (done["deleted"], done["job"], done["jobs_put_back"]) == (2, "restore-tables", 1)
    assert len(home.rows(data)) == 3
    assert launched(home) == {}, "there was something to finish"
    context = dg.build_sensor_context(home.instance, resources={"platform": Platform()}, definitions=defs())
    assert isinstance(defs().resolve_sensor_def("restore_unfinished")(context), dg.SkipReason)
    assert home.run("ingest_engagements", [datetime.now(UTC).date()]).success
    assert len(home.rows(data)) == len(both)


@pytest.mark.slow
def test_profiles_go_back_with_their_changes_and_come_again(home: Home) -> None:
    def names() -> set[str]:
        return {row[2] for row in seen_by_rules(Settings().lake, PROFILE)}

    home.broker.create_topic(home.profile_changes)
    changes = [change(f"p{n}", 1, "INSERT", name=f"Name {n}") for n in range(5)]
    home.broker.produce(home.profile_changes, [(0, None, said) for said in changes])
    assert home.run("ingest_profile_changes", [datetime.now(UTC).date()]).success
    all_five = {f"Name {n}" for n in range(5)}
    assert names() == all_five
    shown = launched(home, table=PROFILE.changeset.name, to="1", reason="a bad batch")
    assert shown["boundary"] == "the end of ingest-profile-changes batch 0"
    assert names() == all_five, "a dry run changed something"
    done = launched(home, table=PROFILE.changeset.name, to="1", reason="a bad batch", dry_run=False)
    assert done["jobs_put_back"] == 1
    assert names() == {"Name 0", "Name 1", "Name 2"}
    assert launched(home) == {}, "there was something to finish"
    assert home.run("ingest_profile_changes", [datetime.now(UTC).date()]).success
    assert names() == all_five
