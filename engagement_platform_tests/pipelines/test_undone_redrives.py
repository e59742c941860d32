"""Which batches restores have undone, by the stores: what a redrive of them has marked is open again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseStore
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.pipelines.redrive import undone

RESTORE = "restore-tables"


def test_what_finished_restores_have_undone_is_known_and_what_was_given_up_has_undone_nothing(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'stores.db'}")
    checkpoints = CheckpointStore(engine)
    stores = Stores(checkpoints, BatchMetadataStore(engine), LeaseStore(engine))
    assert undone(stores) == []
    app_id, now = checkpoints.app_id(RESTORE), datetime(2026, 3, 1, tzinfo=UTC)
    sequences = []
    for number, batches in enumerate(
        [["redrive-quarantine:a:b batch 0", "ingest batch 3"], ["c batch 1"], ["d batch 0"]]
    ):
        restore = Manifest(RESTORE, app_id, number, {}, {}, now, source={"undone": batches})
        restore = checkpoints.begin(restore)
        if number < 2:
            checkpoints.succeed(restore, {}, {"abandoned_by": "ann@here"} if number == 1 else {})
        sequences.append(restore.sequence)
    first = sequences[0]
    assert undone(stores) == [(first, "redrive-quarantine:a:b batch 0"), (first, "ingest batch 3")]
