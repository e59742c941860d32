"""What guards refuse, a run of Dagster is refused too; its failure says the same sentence: why, and what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest
from deltalake import DeltaTable

from engagement_platform.defs.page_views import hop_asset
from engagement_platform.defs.platform import bound_platform
from engagement_platform.engine.cursors import StreamCheckpoints
from engagement_platform.lake import log
from engagement_platform.lake.engagement import data_table
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.page_views.job import SESSIONS, Hop
from engagement_platform.pipelines.page_views.tables import PAGE_VIEW
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.defs.conftest import Home
from engagement_platform_tests.defs.test_engagement import engagement

pytestmark = pytest.mark.broker

DATA = data_table("organization")


def said(result: dg.ExecuteInProcessResult) -> str:
    """What the page of a failed run shows of its one step."""
    assert not result.success
    [failed] = result.get_step_failure_events()
    error = failed.step_failure_data.error
    assert error is not None
    assert error.cause is not None
    return error.cause.message


def test_a_second_writer_of_a_table_whose_rows_change_is_refused_and_the_run_says_who_is_in_the_way(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__LEASE_WAIT", "PT0S")
    today = [datetime.now(UTC).date()]
    home.broker.produce(home.engagements, [(0, None, engagement(1))])
    with open_stores(Settings()).leases.acquire(f"table/{DATA.name}", purpose="a migration") as held:
        refused = said(home.run("ingest_engagements", today, raise_on_error=False))
        assert f"(a migration) holds {held.fence.name} since" in refused
        assert "Nothing was changed. Let that run end" in refused
        assert "ENGAGEMENT_PLATFORM_STORES__LEASE_WAIT" in refused
        assert log.version(DATA.uri(Settings().lake)) in {None, 0}
    assert home.run("ingest_engagements", today).success
    assert len(home.rows(DATA)) == 1


def run_of(hop: Hop) -> dg.ExecuteInProcessResult:
    """A run of a hop alone, as `ViewAnalytics` runs its own."""
    return dg.materialize([hop_asset(hop)], resources={"platform": bound_platform()}, raise_on_error=False)


def test_a_stream_from_a_table_whose_rows_change_is_refused_and_the_run_names_the_one_to_stream(home: Home) -> None:
    refused = said(run_of(replace(SESSIONS, name="persons", source=DATA)))
    assert "engagement/data changes rows that were written, so it cannot be streamed from" in refused
    assert "Stream engagement/notification" in refused


def test_a_stream_from_a_table_that_somebody_let_be_changed_is_refused_and_the_run_says_so(home: Home) -> None:
    uri = PAGE_VIEW.uri(Settings().lake)
    plant.create(uri, PAGE_VIEW)
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    refused = said(run_of(SESSIONS))
    assert "view/page_view differs from its contract: delta.appendOnly is false" in refused
    assert "Nothing was written" in refused


def test_a_stream_on_the_checkpoint_folder_of_another_is_refused_and_the_run_names_its_owner(home: Home) -> None:
    settings = Settings()
    folder = f"{settings.lake}/_checkpoints/page-views/{SESSIONS.name}"
    StreamCheckpoints(open_stores(settings).leases.engine).claim("somebody-else", folder)
    refused = said(run_of(SESSIONS))
    assert f"{folder} belongs to the stream somebody-else" in refused
    assert "Give every stream a folder of its own" in refused
