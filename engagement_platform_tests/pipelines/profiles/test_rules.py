"""The rules give what a sequential replay gives, after every batch and every rematerialization. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.profiles.entity import Attribute, Entity
from engagement_platform.pipelines.profiles.point_read import read_keys
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform_tests.pipelines.profiles.histories import (
    DEVICE,
    PROFILE,
    Batches,
    Changes,
    seen_by_rules,
    side_by_side,
)
from engagement_platform_tests.pipelines.profiles.oracle import Said, replay

HISTORIES = 60
BATCHES = 3


def seen(changes: Changes) -> list[tuple[object, ...]]:
    return seen_by_rules(str(changes.root), changes.entity)


def assert_replayed(root: Path, entity: Entity, batches: Batches, moved_after: set[int], dropped: bool) -> None:
    changes = Changes(root, entity)
    landed: list[Said] = []
    for number, batch in enumerate(batches):
        changes.land(number, batch)
        landed += batch
        assert seen(changes) == replay(landed, entity), f"after batch {number}"
        if number in moved_after:
            changes.move()
            assert seen(changes) == replay(landed, entity), f"batch {number} is in the base, and still in the changeset"
            if dropped:
                changes.drop(number)
                assert seen(changes) == replay(landed, entity), f"batch {number} is in the base"


@pytest.mark.parametrize(
    "entity", [PROFILE, DEVICE, replace(PROFILE, unknown_update="quarantine")], ids=["profile", "device", "quarantine"]
)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32), moved_after=st.sets(st.integers(0, BATCHES - 1)), dropped=st.booleans())
def test_any_history_reads_as_its_replay(entity: Entity, seed: int, moved_after: set[int], dropped: bool) -> None:
    """Late, tied and unknown changes, over rematerializations: many histories an example, each of its own key."""
    with TemporaryDirectory() as folder:
        batches = side_by_side(seed, entity, HISTORIES, BATCHES)
        assert_replayed(Path(folder), entity, batches, moved_after, dropped)


def told(tmp_path: Path, *batches: list[Said], entity: Entity = PROFILE) -> list[tuple[object, ...]]:
    changes = Changes(tmp_path, entity)
    for number, batch in enumerate(batches):
        changes.land(number, batch)
    found = seen(changes)
    assert found == replay([change for batch in batches for change in batch], entity)
    return found


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([("INSERT", {"name": "Ann"}, ()), ("UPDATE", {"title": "Dr"}, ())], "Ann"),
        ([("INSERT", {"name": "Ann"}, ()), ("UPDATE", {"name": None}, ())], "Ann"),
        ([("INSERT", {"name": "Ann"}, ()), ("UPDATE", {"name": "Bo"}, ("name",))], None),
        ([("INSERT", {"name": "Ann"}, ()), ("DELETE", {}, ())], "gone"),
        ([("INSERT", {"name": "Ann"}, ()), ("DELETE", {}, ()), ("INSERT", {"title": "Dr"}, ())], None),
        ([("UPDATE", {"name": "Ann"}, ())], "Ann"),
    ],
    ids=["another column", "null is absent", "set_null wins", "deleted", "born again", "upsert"],
)
def test_a_column_takes_its_newest_word(
    tmp_path: Path, changes: list[tuple[str, dict[str, object], tuple[str, ...]]], name: str | None
) -> None:
    batch = [Said("p", n, op, said, cleared) for n, (op, said, cleared) in enumerate(changes, 1)]
    found = told(tmp_path, batch)
    assert [row[2] for row in found] == ([] if name == "gone" else [name])


def test_of_equal_versions_the_first_to_land_stays_column_by_column(tmp_path: Path) -> None:
    first, second = Said("p", 1, "INSERT", {"name": "Ann"}), Said("p", 1, "UPDATE", {"name": "Bo", "city": "Rome"})
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [first])
    changes.move()
    changes.land(1, [second])
    assert [(row[2], row[6]) for row in seen(changes)] == [("Ann", "Rome")]


def test_where_unknown_updates_are_ignored_they_wait_for_their_insert(tmp_path: Path) -> None:
    entity = replace(PROFILE, unknown_update="ignore")
    changes = Changes(tmp_path, entity)
    changes.land(0, [Said("p", 2, "UPDATE", {"name": "Ann"})])
    assert seen(changes) == []
    changes.move()
    changes.land(1, [Said("p", 1, "INSERT", {"name": "Bo", "city": "Rome"})])
    assert [(row[2], row[6]) for row in seen(changes)] == [("Ann", "Rome")]


def test_a_tombstone_outlives_a_rematerialization(tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said("p", 3, "DELETE")])
    changes.move()
    changes.drop(0)
    changes.land(1, [Said("p", 2, "INSERT", {"name": "Ann"})])
    assert seen(changes) == []
    changes.land(2, [Said("p", 4, "UPDATE", {"name": "Ann"})])
    assert [row[2] for row in seen(changes)] == ["Ann"]


def test_a_key_is_found_alone_and_files_without_it_are_not_read(tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said(f"a{n}", 1, "INSERT", {"name": "Ann"}) for n in range(3)])
    changes.land(1, [Said("it's", 1, "INSERT", {"name": "Bo"})])
    # A file that is not there fails whoever opens it.
    table = DeltaTable(PROFILE.changeset.uri(str(tmp_path)))
    [other] = [uri for uri in table.file_uris() if "batch_id=0" in uri]
    Path(other).unlink()
    at = snapshot(str(tmp_path), PROFILE)
    assert [row["name"] for row in read_keys(str(tmp_path), PROFILE, ["it's"], at).values()] == ["Bo"]
    assert read_keys(str(tmp_path), PROFILE, [], at) == {}


def test_a_reader_of_an_earlier_state_keeps_it(tmp_path: Path) -> None:
    changes = Changes(tmp_path, PROFILE)
    changes.land(0, [Said("p", 1, "INSERT", {"name": "Ann"})])
    before = snapshot(str(tmp_path), PROFILE)
    changes.land(1, [Said("p", 2, "UPDATE", {"name": "Bo"})])
    changes.move()
    changes.drop(1)
    now = snapshot(str(tmp_path), PROFILE)
    assert (before.watermark, now.watermark, now.pending, now.orphans) == (-1, 1, {}, [])
    assert read_keys(str(tmp_path), PROFILE, ["p"], before)["p"]["name"] == "Ann"
    assert seen(changes)[0][2] == "Bo"


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("name", "name"), "called name"),
        (("op",), "called op"),
        (("batch_sequence",), "called batch_sequence"),
        (("a", "a_version"), "a_version"),
        ((), "no columns"),
    ],
    ids=str,
)
def test_an_entity_whose_columns_clash_is_refused(names: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Entity("x", "id", "version", tuple(Attribute(name, "string", "") for name in names))
