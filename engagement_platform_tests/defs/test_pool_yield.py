"""A run that drains looks into the queue: who waits for its pool, and who does not matter to it."""

from __future__ import annotations

import json
import time

import dagster as dg
import pytest

from engagement_platform.defs import pool_yield
from engagement_platform.defs.pool_yield import BACKLOG, gives_way, wanted_by_others

OURS = "profile_changeset"
# As the stores of Dagster have them, for it exports no class for them.
ORIGIN = {
    "__class__": "ExternalPipelineOrigin",
    "external_repository_origin": {
        "__class__": "ExternalRepositoryOrigin",
        "repository_location_origin": {"__class__": "RegisteredRepositoryLocationOrigin", "location_name": "here"},
        "repository_name": "ours",
    },
    "pipeline_name": "a_job",
}


def run_in(*pools: str, status: dg.DagsterRunStatus, run_id: str, **tags: str) -> dg.DagsterRun:
    run = json.loads(dg.serialize_value(dg.DagsterRun(job_name="a_job", run_id=run_id, tags=tags)))
    known = {
        "__class__": "RunOpConcurrency",
        "root_key_counts": {},
        "has_unconstrained_root_nodes": False,
        "all_pools": {"__set__": pools},
    }
    is_at = json.loads(dg.serialize_value(status))
    run |= {"external_pipeline_origin": ORIGIN, "run_op_concurrency": known, "status": is_at}
    return dg.deserialize_value(json.dumps(run), dg.DagsterRun)


def asked(instance: dg.DagsterInstance, *pools: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a run that holds these pools would end now."""
    monkeypatch.setattr(pool_yield, "LOOK_EVERY_S", 0.0)
    context = dg.build_op_context(instance=instance)
    monkeypatch.setattr(type(context), "run", run_in(*pools, status=dg.DagsterRunStatus.STARTED, run_id="ours"))
    return gives_way(context)()


@pytest.mark.parametrize(
    ("pools", "status", "tags", "waits"),
    [
        ([OURS], dg.DagsterRunStatus.QUEUED, {}, True),
        (["another", OURS], dg.DagsterRunStatus.QUEUED, {}, True),
        (["another"], dg.DagsterRunStatus.QUEUED, {}, False),
        ([], dg.DagsterRunStatus.QUEUED, {}, False),
        ([OURS], dg.DagsterRunStatus.STARTED, {}, False),
        ([OURS], dg.DagsterRunStatus.CANCELED, {}, False),
        ([OURS], dg.DagsterRunStatus.QUEUED, {BACKLOG: "7"}, False),
    ],
)
def test_only_what_somebody_launched_and_waits_for_the_same_pool_ends_a_drain(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    pools: list[str],
    status: dg.DagsterRunStatus,
    tags: dict[str, str],
    waits: bool,
) -> None:
    instance.add_run(run_in(*pools, status=status, run_id="other", **tags))
    assert asked(instance, OURS, monkeypatch=monkeypatch) is waits


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
def test_who_could_not_begin_anyhow_ends_no_drain(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, status: dg.DagsterRunStatus
) -> None:
    """It waits for another pool, too, which a third run holds."""
    instance.add_run(run_in(OURS, "another", status=dg.DagsterRunStatus.QUEUED, run_id="waiting"))
    assert asked(instance, OURS, monkeypatch=monkeypatch)
    instance.add_run(run_in("another", status=status, run_id="third"))
    assert not asked(instance, OURS, monkeypatch=monkeypatch)


def test_a_run_that_holds_no_pool_goes_on(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    instance.add_run(run_in(status=dg.DagsterRunStatus.QUEUED, run_id="other"))
    assert not asked(instance, monkeypatch=monkeypatch)


def test_the_queue_is_looked_at_every_few_seconds_only(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.add_run(run_in(OURS, status=dg.DagsterRunStatus.QUEUED, run_id="other"))
    context = dg.build_op_context(instance=instance)
    monkeypatch.setattr(type(context), "run", run_in(OURS, status=dg.DagsterRunStatus.STARTED, run_id="ours"))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    somebody_waits = gives_way(context)
    answers = []
    for _ in range(3):
        now[0] += pool_yield.LOOK_EVERY_S / 2
        answers.append(somebody_waits())
    assert answers == [False, True, False]


@pytest.mark.parametrize(
    ("pool", "status", "wanted"),
    [
        (OURS, dg.DagsterRunStatus.QUEUED, {"ingest-profile-changes"}),
        (OURS, dg.DagsterRunStatus.STARTED, {"ingest-profile-changes"}),
        (OURS, dg.DagsterRunStatus.SUCCESS, set()),
        ("another", dg.DagsterRunStatus.STARTED, set()),
    ],
)
def test_a_shared_drain_leaves_to_any_other_run_only_the_job_whose_pool_that_one_has(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    status: dg.DagsterRunStatus,
    wanted: set[str],
) -> None:
    context = dg.build_op_context(instance=instance)
    ours = run_in("drain_pipelines", status=dg.DagsterRunStatus.STARTED, run_id="ours")
    monkeypatch.setattr(type(context), "run", ours)
    instance.add_run(ours)
    instance.add_run(run_in(pool, status=status, run_id="other"))
    ask = wanted_by_others(context, {OURS: "ingest-profile-changes", "engagement_data": "ingest-engagements"})
    assert ask() == wanted
