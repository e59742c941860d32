"""The two tables of an entity have what folding, merging and cleaning up need, however the entity is shaped."""

from __future__ import annotations

import pytest

from engagement_platform.lake.contract import Mode
from engagement_platform.pipelines.profiles.entity import Entity, version_of
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, PROFILE


@pytest.mark.parametrize("entity", [PROFILE, DEVICE], ids=lambda entity: entity.name)
def test_tables_have_key_versions_and_partitions(entity: Entity) -> None:
    changeset = {column.name: column.type for column in entity.changeset.columns}
    base = {column.name: column.type for column in entity.base.columns}
    for columns in (changeset, base):
        assert (columns[entity.key], columns[entity.version]) == ("string", "long")
        assert {a.name: columns[a.name] for a in entity.attributes} == {a.name: a.type for a in entity.attributes}
    assert (changeset["op"], changeset["set_null"], changeset["batch_id"]) == ("string", "array<string>", "long")
    assert entity.changeset.partitioned_by == ("batch_id",), "merged batches leave by partition"
    assert {base[version_of(name)] for name in entity.columns} == {"long"}, "late changes find their place"
    assert (base["present"], base["present_version"]) == ("boolean", "long"), "tombstones"
    assert entity.base.partitioned_by == entity.partitioned_by
    assert {entity.changeset.mode, entity.base.mode} == {Mode.MUTABLE}, "nobody streams from either"
    assert entity.view_columns == (entity.key, entity.version, *entity.columns)
