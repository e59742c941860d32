"""Readers without a JVM see engagements with everything that is published and not moved, and read no more for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MUTATION_REQUEST
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform_tests.consumers.lakes import PlainLake, Rows, by_key
from engagement_platform_tests.pipelines.mutations.histories import convert, delete, engagement, request


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    """Two organizations; of `org`, each of the ways in which something can pend."""
    lake = PlainLake(tmp_path)
    persons = {"newer": "p1", "patched": "p2", "moved": "p3", "gone": "p4", "both": "p3"}
    lake.land([engagement(name, person, 10) for name, person in persons.items()])
    lake.land([engagement("quiet", "p3", 10, organization_id="other")])
    lake.land([engagement("newer", "p5", 10, version=2, subject="second")])
    lake.ask(
        [
            request("u1", "UPDATE", 20, engagement_id="patched", subject="patched"),
            request("u2", "UPDATE", 20, engagement_id="both", channel="web"),
            convert("c1", "p3", "p9", 20),
            convert("c2", "p5", "p6", 20),
            delete("d1", 20, from_id="p4"),
        ]
    )
    return lake


def now(lake: PlainLake) -> CurrentRows:
    current = CurrentRows.of(lake.settings.lake)
    assert current is not None
    return current


def every(lake: PlainLake) -> Rows:
    return by_key(pa.concat_tables([CURRENT_ROW.empty_table(), *now(lake).rows(CURRENT_ROW.names)]))


def found(lake: PlainLake) -> Rows:
    return by_key(pa.concat_tables(now(lake).rows(CURRENT_ROW.names, keys=lake.rows(lake.data))))


def test_images_patches_conversions_and_deletions_are_seen_before_they_are_moved(lake: PlainLake) -> None:
    seen = every(lake)
    persons = {name: row["person_id"] for (_, name), row in seen.items()}
    assert persons == {"newer": "p6", "patched": "p2", "moved": "p9", "both": "p9", "quiet": "p3"}
    assert (seen["org", "newer"]["version"], seen["org", "newer"]["engagement"]["subject"]) == (2, "second")
    assert seen["org", "patched"]["engagement"]["subject"] == "patched"
    assert seen["org", "both"]["engagement"]["channel"] == "web"
    assert seen == found(lake) == lake.standing()
    for dies_before in (CHANGESET, None):
        lake.move(dies_before=dies_before)
        assert every(lake) == found(lake) == seen, "a move changes nothing for readers"


def test_less_than_everything_is_the_same_of_less(lake: PlainLake) -> None:
    (rows,) = now(lake).rows(("engagement_id", "person_id"), organizations={"other"})
    assert rows.to_pylist() == [{"engagement_id": "quiet", "person_id": "p3"}]
    keys = lake.rows(lake.data)
    keys = keys.filter(pc.equal(keys["engagement_id"], "newer"))
    (some,) = now(lake).rows(["version"], keys=keys)
    assert some.to_pylist() == [{"version": 2}]
    assert list(now(lake).rows(CURRENT_ROW.names, organizations={"nobody"})) == []


def test_a_batch_that_is_not_published_is_not_seen(lake: PlainLake) -> None:
    before = every(lake)
    images = lake.land([engagement("newer", "p7", 10, version=3)], dies_before=lake.data)
    assert every(lake) == found(lake) == before
    lake.append(lake.data, [], images)
    assert every(lake)["org", "newer"]["person_id"] == "p7"
    before = every(lake)
    edges = lake.ask([convert("c9", "p7", "p8", 21)], dies_before=MUTATION_REQUEST)
    assert every(lake) == found(lake) == before
    lake.append(MUTATION_REQUEST, [], edges)
    assert every(lake) == found(lake) == lake.standing()
    assert every(lake)["org", "newer"]["person_id"] == "p8"


def test_a_later_patch_keeps_what_earlier_ones_said(lake: PlainLake) -> None:
    lake.move()
    lake.ask([request("u3", "UPDATE", 22, engagement_id="patched", channel="phone")])
    assert every(lake)["org", "patched"]["engagement"] == {
        "type": "email", "channel": "phone", "subject": "patched", "attributes": None
    }  # fmt: skip
    lake.land([engagement("patched", "p2", 10, version=2, subject="as said")])
    assert every(lake)["org", "patched"]["engagement"]["subject"] == "patched", "a patch goes over later versions"
    assert every(lake) == found(lake) == lake.standing()


def test_an_id_of_two_organizations_is_two_engagements(lake: PlainLake) -> None:
    lake.land([engagement("newer", "p3", 10, organization_id="other")])
    assert every(lake)["other", "newer"]["person_id"] == "p3"
    assert every(lake) == found(lake) == lake.standing()


def remove_files(lake: PlainLake, *tables: Table) -> None:
    for table in tables:
        for path in DeltaTable(lake.uri(table)).file_uris():
            Path(path.removeprefix("file://")).unlink()


def test_where_nothing_pends_no_log_of_changes_is_opened(lake: PlainLake) -> None:
    remove_files(lake, CHANGESET, ALIAS)
    (rows,) = now(lake).rows(("person_id",), organizations={"other"})
    assert rows.to_pylist() == [{"person_id": "p3"}]
    lake.move(dies_before=CHANGESET)
    remove_files(lake, MUTATION_REQUEST)
    assert len(every(lake)) == 5
