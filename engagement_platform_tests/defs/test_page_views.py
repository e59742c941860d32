"""Page views as a run of Dagster: each hop drains what waits and says so; the schedule rests while nothing waits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from engagement_platform.defs.page_views import JOB, page_view_definitions
from engagement_platform.defs.platform import Platform
from engagement_platform.pipelines.page_views.tables import DAILY, PAGE_VIEW, SESSION, VIEW_QUARANTINE
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.defs.conftest import materialized
from engagement_platform_tests.pipelines.page_views.oracle import Chain
from engagement_platform_tests.pipelines.page_views.test_hops import BEGIN, GAP, LATE, World, assert_is, some_views


@pytest.mark.slow
@pytest.mark.broker
def test_a_run_drains_every_hop_and_tells_its_rows_and_its_lag(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, chain = World(spark, broker, tmp_path), Chain(GAP, LATE)
    for name, value in {
        "HOME": str(tmp_path),
        "KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "PAGE_VIEWS__TOPIC": world.settings.page_views.topic,
        "PAGE_VIEWS__SESSION_GAP": f"PT{GAP.total_seconds():.0f}S",
        "PAGE_VIEWS__MAX_LATE": f"PT{LATE.total_seconds():.0f}S",
    }.items():
        monkeypatch.setenv(f"ENGAGEMENT_PLATFORM_{name}", value)
    views = some_views(random.Random(3), BEGIN, 30)
    world.send(views, b"{")
    chain.drain(views)
    definitions = page_view_definitions("* * * * *")
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:

        def tick() -> dg.RunRequest | dg.SkipReason:
            context = dg.build_schedule_context(instance, resources={"platform": Platform()})
            told: Any = definitions.resolve_schedule_def(f"{JOB}_by_the_clock")(context)
            return told  # type: ignore[no-any-return]

        assert isinstance(tick(), dg.RunRequest)
        assert definitions.resolve_job_def(JOB).execute_in_process(instance=instance).success
        told = {
            table.name: materialized(instance, table.name) for table in (PAGE_VIEW, VIEW_QUARANTINE, SESSION, DAILY)
        }
        # Nothing waits any more: a second run adds nothing.
        assert definitions.resolve_job_def(JOB).execute_in_process(instance=instance).success
        assert materialized(instance, PAGE_VIEW.name)["rows_in"] == 0
        assert "Nothing is waiting" in str(tick())
        failed = instance.create_run_for_job(definitions.resolve_job_def(JOB), status=dg.DagsterRunStatus.STARTED)
        instance.report_run_failed(failed)
        assert isinstance(tick(), dg.RunRequest), "a later hop may have failed, which reads tables"
        instance.delete_run(failed.run_id)
        world.broker.delete_topic(world.settings.page_views.topic)
        assert "has no topic" in str(tick())
    assert_is(world, chain)
    assert told[PAGE_VIEW.name]["rows_in"] == len(views) + 1
    assert told[VIEW_QUARANTINE.name]["dagster/row_count"] == 1
    assert told[VIEW_QUARANTINE.name]["rows_in"] == len(views) + 1
    assert told[SESSION.name]["rows_in"] == len(views)
    assert told[DAILY.name]["rows_in"] == len(chain.sessions)
    last = max(at for _, at in views)
    assert told[PAGE_VIEW.name]["newest_event"] == pytest.approx(last.timestamp(), abs=0.001)
    # A session is there once nothing late can prolong it: by so much its table is behind that of page views.
    assert told[SESSION.name]["behind_s"] >= GAP.total_seconds()
