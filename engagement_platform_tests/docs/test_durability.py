"""What docs/exactly_once.md says of power cuts is so in the code: who changes one of these has to change the page."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from engagement_platform.local.kafka import EmbeddedKafka
from engagement_platform.pii.keys import open_pii

PAGE = Path(__file__).parents[2] / "docs" / "exactly_once.md"


def test_tombstones_and_keys_are_synced_as_the_stores_are(tmp_path: Path) -> None:
    with closing(open_pii(f"sqlite:///{tmp_path / 'stores.db'}").raw_connection()) as opened:
        said = {name: opened.cursor().execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "fullfsync")}
    assert said == {"synchronous": (2,), "fullfsync": (0,)}
    assert "`synchronous = FULL`" in PAGE.read_text(encoding="utf-8")


def test_the_embedded_broker_leaves_flushing_to_the_operating_system(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, 1, 2, [])
    assert not [name for name in broker.properties if "flush" in name]
    assert "their default is never" in PAGE.read_text(encoding="utf-8")
