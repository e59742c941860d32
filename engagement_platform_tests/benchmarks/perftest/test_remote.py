"""A performance test of a cluster that asks for a token: the profiles of a lake, on a real Spark Connect server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.perftest.timer import TIMER
from engagement_platform_tests.conftest import QUICK_JVM
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.pipelines.profiles.histories import PROFILE, Changes, seen_by_rules, side_by_side

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

TOKEN = "dapi-0123456789-of-a-cluster"
CONF = "ENGAGEMENT_PLATFORM_SPARK__CONF"
METHODS = ["double_rank_over", "full_outer_join", "left_join_anti_join"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose Spark answers only who has the token; its users are not told of it."""
    conf = {"spark.driver.extraJavaOptions": " ".join(QUICK_JVM), "spark.connect.authenticate.token": TOKEN}
    with started(tmp_path_factory.mktemp("guarded"), {CONF: json.dumps(conf)}) as machine:
        yield Machine(machine.folder, {name: value for name, value in machine.environment.items() if name != CONF})


def asked(machine: Machine, token: str) -> Path:
    """The spec: each method reads and writes the lake's profiles once."""
    file = machine.folder / "spec.json"
    # Only to this name clients of Spark give a token without TLS.
    remote = machine.environment["ENGAGEMENT_PLATFORM_SPARK__REMOTE"].replace("127.0.0.1", "localhost")
    cluster = {"remote": remote, "token": token}
    said = {"runs": 1, "methods": METHODS, "lake": machine.lake, "read_queries": ["score >= 0"], "cluster": cluster}
    file.write_text(json.dumps(said))
    return file


def test_a_cluster_is_measured_by_who_has_its_token_and_nobody_reads_it_anywhere(guarded: Machine) -> None:
    changes = Changes(Path(guarded.lake), PROFILE)
    for number, batch in enumerate(side_by_side(1, PROFILE, 200, 2)):
        changes.land(number, batch)
    wrong = TOKEN[::-1]
    said = [guarded.cli("perftest", str(asked(guarded, wrong)), expect=1)]
    assert not (Path(guarded.lake) / TIMER.name).exists()
    for measured in (2 * len(METHODS), 0):
        said.append(guarded.cli("perftest", str(asked(guarded, TOKEN))))
        assert said[-1].count(" min left)") == measured
    rows = guarded.rows(TIMER.name, "operation", "method", "rows", "parameters")
    assert [row[:2] for row in rows] == [(operation, m) for operation in ("read", "write") for m in METHODS]
    everybody = len(seen_by_rules(guarded.lake, PROFILE))
    assert {row[2] for row in rows if row[0] == "write"} == {everybody}
    places = [guarded.folder / "home" / "perftest", Path(guarded.lake)]
    kept = [path for place in places for path in place.rglob("*") if path.is_file()]
    everything = [*(line.encode() for line in said), *(path.read_bytes() for path in kept)]
    assert [part[:80] for part in everything for token in (TOKEN, wrong) if token.encode() in part] == []
