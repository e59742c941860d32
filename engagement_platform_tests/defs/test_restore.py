"""A restore as a run of Dagster: a dry run by default, and the plan is the metadata of the run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from engagement_platform.defs.platform import Platform
from engagement_platform.lake.engagement import data_table
from engagement_platform_tests.defs.conftest import Home, loaded
from engagement_platform_tests.defs.test_mutation import engagement

pytestmark = pytest.mark.broker


def launched(home: Home, **config: Any) -> Any:
    """The plan, as the run's output shows it."""
    job = loaded().resolve_job_def("restore_tables")
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
    context = dg.build_sensor_context(home.instance, resources={"platform": Platform()}, definitions=loaded())
    assert isinstance(loaded().resolve_sensor_def("restore_unfinished")(context), dg.SkipReason)
    assert home.run("ingest_engagements", [datetime.now(UTC).date()]).success
    assert len(home.rows(data)) == len(both)
