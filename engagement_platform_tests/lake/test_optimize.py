"""What looking after a table's log removes, and what stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import optimize
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.engagement import MAPPING
from engagement_platform.lake.optimize import Place, checkpoint_log
from engagement_platform_tests import plant
from engagement_platform_tests.files_with import places_with

CANARY = "bob-canary"


def dies(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("of", "ends_before"),
    [
        (DeltaTable, "create_checkpoint"),
        (DeltaTable, "cleanup_metadata"),
        (optimize, "_remove_checksums"),
        (optimize, ""),
    ],
)
def test_bounds_that_spark_keeps_beside_expired_entries_go_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: object, ends_before: str
) -> None:
    """Spark writes all files of a version with their least and greatest values into `N.crc`; delta-rs leaves those.

    Also after a call that ended before it was done.
    """
    uri, log = MAPPING.uri(str(tmp_path)), Path(MAPPING.uri(str(tmp_path)), "_delta_log")
    plant.create(uri, MAPPING)
    DeltaTable(uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    for number, (id_, name) in enumerate(((CANARY, None), ("ann", "Ann"), ("amy", "Amy"))):
        rows = table_of([{"organization_id": "org", "id": id_, "name": name}], MAPPING)
        plant.append(DeltaTable(uri), rows, Transaction("t", number))
    newest = DeltaTable(uri).version()
    for version in range(newest + 1):
        (log / f"{version:020d}.crc").write_text(f'{{"allFiles": [{{"stats": "{CANARY}"}}]}}')
        (log / f".{version:020d}.json.crc").write_text("crc")
    old = time.time() - 3 * 86_400
    for path in log.iterdir():
        os.utime(path, (old, old))
    DeltaTable(uri).delete("name IS NULL")
    (log / f"{newest + 1:020d}.crc").write_text("of the version of now")
    place = Place(MAPPING.name, uri, str(tmp_path))
    if ends_before:
        with monkeypatch.context() as patched:
            patched.setattr(of, ends_before, dies)
            with pytest.raises(KeyboardInterrupt):
                checkpoint_log(place, clean=True)
    checkpoint_log(place, clean=True)
    kept = {path.name.removesuffix(".crc") for path in log.glob("0*.crc")}
    assert kept == {path.name.removesuffix(".json") for path in log.glob("0*.json")} == {f"{newest + 1:020d}"}
    assert places_with([log], [CANARY.encode()]) == []
    assert sorted(DeltaTable(uri).to_pyarrow_table().column("id").to_pylist()) == ["amy", "ann"]
