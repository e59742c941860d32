"""The chain's process is killed, between two hops and between a commit and its checkpoint; everything is real."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.pipelines.page_views.job import run_hops
from engagement_platform.pipelines.page_views.tables import PAGE_VIEW
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.pipelines.page_views.oracle import Chain
from engagement_platform_tests.pipelines.page_views.test_hops import BEGIN, GAP, LATE, World, assert_is, some_views

POINTS = ("page_view", "committed session", "session")


def killed(world: World, point: str) -> None:
    """Another process runs the chain and ends at the point."""
    told = {
        "HOME": str(world.settings.home),
        "KAFKA__BOOTSTRAP_SERVERS": world.broker.bootstrap_servers,
        "PAGE_VIEWS__TOPIC": world.settings.page_views.topic,
        "PAGE_VIEWS__SESSION_GAP": "PT30M",
        "PAGE_VIEWS__MAX_LATE": "PT1H",
    }
    env = {**os.environ, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}}
    command = [sys.executable, "-m", "engagement_platform_tests.pipelines.page_views.killable", point]
    ended = subprocess.run(command, env=env, check=False, capture_output=True, timeout=900)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]


@pytest.mark.broker
@pytest.mark.crash
@pytest.mark.slow
def test_a_chain_that_is_killed_between_hops_and_commits_ends_in_what_a_loop_makes(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    world, chain, dice = World(spark, broker, tmp_path), Chain(GAP, LATE), random.Random(5)
    sent = 0
    for number, point in enumerate(POINTS):
        views = some_views(dice, BEGIN + timedelta(hours=20 * number), 18)
        world.send(views)
        sent += len(views)
        killed(world, point)
        assert len(world.rows(PAGE_VIEW, "view_id")) == sent, f"{point} is after the first hop"
        # Each drain of the sessions sees what one part brought, as the loop does. Where the kill was in the middle of a
        # batch of theirs, Spark finishes that one and waits for rows before it writes what is over.
        list(run_hops(world.lake, world.stores, until_idle=True, pause=timedelta(0)))
        chain.drain(views, closing=point != "committed session")
        assert_is(world, chain)
    assert chain.days()
    [idle] = run_hops(world.lake, world.stores, until_idle=True, pause=timedelta(0))
    assert {name: drained.rows_in for name, drained in idle.items()} == dict.fromkeys(idle, 0)
    assert_is(world, chain)
