"""Which number an erasure gets that is asked for."""

from __future__ import annotations

from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.settings import Settings


def test_stores_from_before_the_last_erasures_number_the_next_one_above_them(platform: Settings) -> None:
    tombstones = StoredTombstones(platform)
    ref = tombstones.keyring.ref("bob")
    assert tombstones.ask(ref, {"persons": ["bob"]}, after=7) == 8
    assert tombstones.ask(ref, {"persons": ["bob"]}, after=7) == 8, "it is the same one"
    assert tombstones.ask(ref, {"persons": ["rob"]}, after=7) == 9
    assert tombstones.next_asked(7) == 8
    assert tombstones.asked(9) == (ref, {"persons": ["rob"]})
