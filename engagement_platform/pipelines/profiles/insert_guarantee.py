"""Since which batch no change waits that `left_join_union_inserts` would get wrong.

That strategy needs inserts that were checked to be new as they landed, and no UPDATE that makes a row. What counts is
the policy under which a change landed, not the one it is read under: settings may change while it waits. So the
changeset says it, in a property of the table: the policy, and the first batch that landed under it.
"""

from __future__ import annotations

from deltalake import DeltaTable

from engagement_platform.lake import log
from engagement_platform.pipelines.profiles.entity import Entity

PROPERTY = "engagement_platform.insertsAreNew"
NO = "no"
_SINCE = " since batch "


def is_kept(entity: Entity) -> bool:
    """Whether a change that lands now is checked, and refused where it would break the promise."""
    return entity.inserts_are_new and entity.unknown_update != "upsert"


def words(entity: Entity, batch: int) -> str:
    """What a changeset says in which all batches from this one on landed under the entity's policy."""
    return f"{entity.unknown_update}{_SINCE}{batch}" if is_kept(entity) else NO


def noted(changeset: DeltaTable) -> str:
    """What this version of a changeset says."""
    return str(changeset.metadata().configuration.get(PROPERTY) or NO)


def to_note(root: str, entity: Entity, batch: int) -> str | None:
    """What the changeset under a lake's root has to say before a batch lands; None: it says so already.

    A batch that is there already, and is only finished now, may have landed under another policy.
    """
    changeset = DeltaTable(log.storage_uri(entity.changeset.uri(root)))
    if noted(changeset).partition(_SINCE)[0] == words(entity, batch).partition(_SINCE)[0]:
        return None
    is_there = any(part["batch_id"] == str(batch) for part in changeset.partitions())
    return words(entity, batch + is_there)


def covers(entity: Entity, said: str, first: int) -> bool:
    """Whether a changeset that says so kept the promise, as the entity understands it now, from a batch on."""
    policy, _, since = said.partition(_SINCE)
    return bool(since) and policy == entity.unknown_update and int(since) <= first
