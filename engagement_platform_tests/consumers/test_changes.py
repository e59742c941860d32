"""A consumer without a JVM: what it is given, where it goes on after a crash, and what it is told when it was away."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from engagement_platform.consumers import Batch, Changes, ConsumerRefused, Position, TooFarBehind
from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.consumers.lag import lags, late
from engagement_platform.consumers.reader import lake_root
from engagement_platform.engine.cursors import CursorMoved, CursorStore
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import CHANGESET, NOTIFICATION
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.settings import LayoutScheme, LayoutSettings
from engagement_platform_tests import plant
from engagement_platform_tests.consumers.lakes import PlainLake, Replica, by_key
from engagement_platform_tests.pipelines.mutations.histories import (
    FIRST_DAY,
    Message,
    convert,
    delete,
    engagement,
    random_history,
    request,
)


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    return PlainLake(tmp_path)


def told(batch: Batch) -> dict[str, dict[str, Any]]:
    """Kind -> engagement -> (person, previous person)."""
    found: dict[str, dict[str, Any]] = {}
    for kind, table in (("INSERT", batch.inserts), ("UPDATE", batch.updates), ("DELETE", batch.deletes)):
        for (_, name), row in by_key(table).items():
            found.setdefault(kind, {})[name] = (row.get("person_id"), row.get("previous_person_id"))
    return found


def test_a_batch_has_rows_as_they_are_now_under_the_identity_of_now(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p1", 10, subject="hello"), engagement("e2", "p2", 10), engagement("e3", "p3", 10)])
    changes = lake.changes()
    (batch,) = list(changes)
    assert told(batch) == {"INSERT": {"e1": ("p1", None), "e2": ("p2", None), "e3": ("p3", None)}}
    assert by_key(batch.inserts) == lake.standing()
    changes.commit()
    lake.ask([convert("c1", "p1", "p2", 20), delete("d1", 21, from_id="p3")])
    lake.ask([request("u1", "UPDATE", 22, engagement_id="e2", subject="corrected")])
    (batch,) = list(changes)
    assert told(batch) == {"UPDATE": {"e1": ("p2", "p1"), "e2": ("p2", "p2")}, "DELETE": {"e3": (None, "p3")}}
    assert by_key(batch.updates)["org", "e2"]["engagement"]["subject"] == "corrected"


def test_who_follows_waits_for_more_and_is_given_it(lake: PlainLake) -> None:
    land(lake, "e1")
    changes = lake.changes(follow=True, poll=timedelta(milliseconds=10))
    batches = iter(changes)
    assert list(told(next(batches))["INSERT"]) == ["e1"]
    changes.commit()
    later = threading.Timer(0.2, land, (lake, "e2"))
    later.start()
    assert list(told(next(batches))["INSERT"]) == ["e2"], "it came while the consumer waited"
    later.join()


def messages_of(seeds: Sequence[int], rng: random.Random) -> list[list[Message]]:
    """Histories of some organizations in one order, cut into parts."""
    left = [random_history(seed, size=16) for seed in seeds]
    mixed: list[Message] = []
    while any(left):
        mixed.append(rng.choice([history for history in left if history]).pop(0))
    cuts = sorted(rng.randrange(len(mixed)) for _ in range(5))
    return [mixed[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]


def happens(lake: PlainLake, part: Sequence[Message], rng: random.Random) -> None:
    """Engagements as one batch and requests as another, in either order, and now and then a move."""
    for asked in rng.sample((True, False), 2):
        some = [message for message in part if ("request_id" in message) is asked]
        # Decoding refuses conversions of an id to itself.
        some = [message for message in some if not asked or message.get("from_id") != message.get("to_id", "")]
        if some and asked:
            lake.ask(some)
        elif some:
            lake.land(some)
    if rng.random() < 0.3:
        lake.move(dies_before=rng.choice((None, CHANGESET)))


@pytest.mark.parametrize(
    ("scheme", "seed"),
    [
        *product(("liquid", "organization_date"), range(2)),
        *(pytest.param("liquid", seed, marks=pytest.mark.slow) for seed in range(100, 130)),
    ],
)
def test_a_replica_equals_the_table_whatever_happened_and_whenever_it_crashed(
    tmp_path: Path, scheme: LayoutScheme, seed: int
) -> None:
    lake = PlainLake(tmp_path, LayoutSettings(auto_compact=False, scheme=scheme))
    rng, replica = random.Random(seed), Replica()
    for part in messages_of(range(seed * 10, seed * 10 + 5), rng):
        happens(lake, part, rng)
        changes = lake.changes(max_rows=rng.choice((1, 3, 7, 1000)))
        for batch in changes:
            replica.apply(batch)
            if rng.random() < 0.3:
                break  # it dies before it commits
            changes.commit()
    replica.follow(lake.changes(max_rows=5))
    assert replica.rows == lake.standing()
    assert by_key(lake.changes("another").resnapshot().table()) == lake.standing()


def keys(batches: Sequence[Batch]) -> list[str]:
    return [name for batch in batches for kind in told(batch).values() for name in sorted(kind)]


def land(lake: PlainLake, *names: str, organization: str = "org") -> None:
    lake.land([{**engagement(name, "p1", 10), "organization_id": organization} for name in names])


def test_what_was_not_committed_comes_again_and_what_was_does_not(lake: PlainLake) -> None:
    land(lake, "e1", "e2", "e3")
    assert keys(list(lake.changes())) == ["e1", "e2", "e3"], "read, and then it died"
    changes = lake.changes(max_rows=2)
    first = next(iter(changes), None)
    assert first is not None, "what was not committed does not come again"
    changes.commit()
    assert first.position == changes.committed == Position(0, 2)
    land(lake, "e4")
    assert keys([first, *lake.changes()]) == ["e1", "e2", "e3", "e4"]


def test_what_fails_while_rows_are_looked_up_is_told_when_the_same_reader_goes_on(
    lake: PlainLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake, "e1")
    changes = lake.changes()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the store did not answer")

    with monkeypatch.context() as patched:
        patched.setattr(CurrentRows, "rows", fails)
        with pytest.raises(OSError, match="did not answer"):
            list(changes)
    assert keys(list(changes)) == ["e1"]


def test_a_batch_has_at_most_so_many_notifications_whatever_the_commits_have(lake: PlainLake) -> None:
    for first in range(0, 9, 3):
        land(lake, *(f"e{n}" for n in range(first, first + 3)))
    batches = list(lake.changes(max_rows=2))
    assert [batch.notifications for batch in batches] == [2, 2, 2, 2, 1]
    assert keys(batches) == [f"e{n}" for n in range(9)]


def test_a_new_consumer_begins_where_it_was_told_to_and_a_known_one_where_it_is(lake: PlainLake) -> None:
    assert list(lake.changes("early", start="now")) == []
    land(lake, "e1")
    land(lake, "e2")
    seen = log.committed(lake.uri(NOTIFICATION), 2)
    assert keys(list(lake.changes("early"))) == ["e1", "e2"], "now was before them, although it died before a commit"
    assert keys(list(lake.changes("all"))) == ["e1", "e2"]
    assert keys(list(lake.changes("time", start=seen))) == ["e2"]
    assert keys(list(lake.changes("text", start=seen.isoformat() if seen else ""))) == ["e2"]
    assert keys(list(lake.changes("long ago", start=datetime(2020, 1, 1, tzinfo=UTC)))) == ["e1", "e2"]
    assert list(lake.changes("late", start=datetime(2100, 1, 1, tzinfo=UTC))) == []


@pytest.mark.parametrize("start", ["yesterday", "2026-11-21T09:30:00"])
def test_a_start_that_is_none_is_refused_and_leaves_no_cursor(lake: PlainLake, start: str) -> None:
    land(lake, "e1")
    with pytest.raises(ConsumerRefused, match="no cursor was moved"):
        lake.changes(start=start)
    assert CursorStore(lake.stores.leases.engine).all(lake_root(lake.settings.lake)) == []


def test_filters_leave_out_what_nobody_asked_for_and_still_go_on(lake: PlainLake) -> None:
    land(lake, "e1")
    land(lake, "e2", organization="other")
    mine = lake.changes("mine", organizations=["other"])
    assert keys(list(mine)) == ["e2"]
    mine.commit()
    land(lake, "e3")
    assert list(mine) == []
    assert mine.committed.version == 3, "what holds nothing for it needs no commit of its own"
    gone = lake.changes("gone", start="now", columns=["person_id"])
    lake.ask([delete("d1", 20, engagement_id="e1")])
    (batch,) = list(gone)
    assert told(batch) == {"DELETE": {"e1": (None, "p1")}}
    assert batch.inserts.column_names == ["organization_id", "engagement_id", "person_id"]
    assert "engagement_date" not in batch.table().column_names, "a null of it would stand for a day in other changes"
    assert lake.changes("few", columns=["version"]).resnapshot().table().num_columns == 3


def test_unknown_columns_are_refused_by_name(lake: PlainLake) -> None:
    with pytest.raises(ConsumerRefused, match=r"no column called persons.*There are organization_id"):
        lake.changes(columns=["persons"])


def test_two_who_read_under_one_name_are_told(lake: PlainLake) -> None:
    land(lake, "e1")
    one, other = lake.changes(), lake.changes()
    assert len(list(one)) == len(list(other)) == 1
    one.commit()
    with pytest.raises(CursorMoved, match="consumer reader was moved by another process"):
        other.commit()


def test_a_lake_without_tables_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/stores.db"
    changes = Changes(tmp_path / "nowhere", name="first", store_url=url)
    assert list(changes) == []
    with pytest.raises(ConsumerRefused, match="Is it the right lake"):
        changes.resnapshot()


def expire(lake: PlainLake, *versions: int) -> None:
    for version in versions:
        Path(lake.uri(NOTIFICATION), "_delta_log", f"{version:020}.json").unlink()


def vacuum(lake: PlainLake) -> None:
    """Notifications compacted into other files, and the first ones removed."""
    found = DeltaTable(lake.uri(NOTIFICATION))
    found.optimize.compact()
    found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize("how", ["vacuumed", "expired", "made anew", "made anew and as long", "made anew and grown"])
def test_a_consumer_that_was_away_too_long_is_told_and_resnapshots_in_one_call(lake: PlainLake, how: str) -> None:
    replica, others = Replica(), list[str]()
    land(lake, "e1")
    changes = lake.changes()
    replica.follow(changes)
    land(lake, "e2", "e3")
    lake.ask([delete("d1", 20, engagement_id="e1")])
    if how == "vacuumed":
        vacuum(lake)
    elif how == "expired":
        DeltaTable(lake.uri(NOTIFICATION)).create_checkpoint()
        expire(lake, 0, 1, 2)
    else:
        read, newest = changes.committed.version, DeltaTable(lake.uri(NOTIFICATION)).version()
        grows = {"made anew and as long": read, "made anew and grown": newest + 1}.get(how, 0)
        shutil.rmtree(lake.uri(NOTIFICATION))
        lake.create(NOTIFICATION)
        others = [f"n{number}" for number in range(grows)]
        for each in others:
            land(lake, each)
        if how == "made anew and as long":
            # One that was open all the time sees it with the next commit.
            changes = lake.changes()
    with pytest.raises(TooFarBehind, match=r"Consumer reader cannot go on.*resnapshot\(\)") as refused:
        list(changes)
    assert refused.value.position == changes.committed, "its cursor was not moved"
    (lag,) = lags(lake.settings, lake.stores.leases.engine)
    assert lag.behind.lost
    assert "by a snapshot" in late([lag], datetime.now(UTC), timedelta(days=1))[0]
    replica.rows = by_key(changes.resnapshot().table())
    changes.commit()
    (lag,) = lags(lake.settings, lake.stores.leases.engine)
    assert not lag.behind.lost
    land(lake, "e4")
    replica.follow(changes)
    assert sorted(key for _, key in replica.rows) == ["e2", "e3", "e4", *others]
    assert replica.rows == lake.standing()


def test_who_is_behind_an_erasure_hears_of_the_person_by_its_pseudonym(lake: PlainLake) -> None:
    lake.land([engagement("e1", "p-42", 10), engagement("e2", "p2", 10)])
    changes, slow = lake.changes(), lake.changes("slow", max_rows=1)
    for each in (changes, slow):
        for _ in each:
            each.commit()
    lake.ask([convert("c1", "p-42", "amy", 20)])
    lake.ask([convert("c2", "p2", "ann", 20)])
    rows = lake.rows(NOTIFICATION).to_pylist()
    instead = {"p-42": f"{PSEUDONYM}1"}
    for row in rows:
        row |= {name: instead.get(row[name], row[name]) for name in ("person_id", "previous_person_id")}
    found = DeltaTable(lake.uri(NOTIFICATION))
    found.alter.set_table_properties({"delta.appendOnly": "false"})
    plant.replace(found, table_of(rows, NOTIFICATION), Transaction("erase-subjects@1.a/notification/rewrite", 0))
    lake.ask([delete("d1", 21, engagement_id="e2")])
    (batch,) = list(changes)
    assert told(batch) == {"UPDATE": {"e1": ("amy", instead["p-42"])}, "DELETE": {"e2": (None, "p2")}}
    heard = [told(batch) for batch in slow]
    assert heard[0] == {"UPDATE": {"e1": ("amy", instead["p-42"])}}
    assert heard[-1] == {"DELETE": {"e2": (None, "ann")}}, "what follows the erasure is read as it is"


def test_what_others_have_is_not_opened_however_much_it_is(tmp_path: Path) -> None:
    """Ten times as many organizations and days cost nothing: their files need not even be there."""
    lake = PlainLake(tmp_path, LayoutSettings(auto_compact=False, scheme="organization"))
    organizations = ("org", *(f"org-{n}" for n in range(9)))
    for day in range(10):
        some = [engagement(f"e{day}-{i}", "p1", 24 * day + i) for i in range(3)]
        lake.land([{**one, "organization_id": organization} for one in some for organization in organizations])
    changes = lake.changes(start="now")
    changed = [("org", 0), ("org-1", 5)]
    lake.land(
        [
            {**engagement(f"e{day}-0", "p1", 24 * day, version=2), "organization_id": organization}
            for organization, day in changed
        ]
    )
    files = pa.table(DeltaTable(lake.uri(lake.data)).get_add_actions(flatten=True)).to_pylist()
    days = {(FIRST_DAY + timedelta(days=day)) for _, day in changed}
    needed = [
        file
        for file in files
        if file["partition.organization_id"] in dict(changed) and file["min.engagement_date"] in days
    ]
    for file in files:
        if file not in needed:
            Path(lake.uri(lake.data), file["path"]).unlink()
    (batch,) = list(changes)
    assert sorted(by_key(batch.updates)) == [("org", "e0-0"), ("org-1", "e5-0")]
    assert len(files) == 100
    assert len(needed) == 4
