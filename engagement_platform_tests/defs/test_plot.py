"""The picture of the last batches."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs.plot import Bar, markdown, nice_ceiling, svg

SECONDS = st.none() | st.floats(0, 1e7)
BARS = st.lists(st.builds(Bar, st.integers(0, 10**9), st.integers(0, 10**9), SECONDS), max_size=30)


@given(BARS)
def test_any_history_is_a_picture_with_one_bar_a_batch(bars: list[Bar]) -> None:
    drawn = [e for e in ET.fromstring(svg(bars)).iter() if e.get("opacity")]
    assert len(drawn) == len(bars)
    assert all(0 <= float(bar.get("height", "-1")) <= 200 for bar in drawn)


@given(st.floats(0, 1e12))
def test_a_scale_reaches_its_values_and_not_far_beyond(value: float) -> None:
    assert max(value, 1) <= nice_ceiling(value) <= max(1, value * 2.5)


def test_a_full_picture_stays_small_enough_for_every_batch_to_carry_one() -> None:
    bars = [Bar(100_000 + i, 123_456, 12.34) for i in range(30)]
    text = markdown(bars)
    assert text.startswith("![the last 30 batches](data:image/svg+xml;base64,")
    assert len(text) < 12_000


def test_a_batch_without_freshness_leaves_a_gap_and_no_zero() -> None:
    picture = base64.b64decode(markdown([Bar(1, 5, None), Bar(2, 5, 3.0)]).split("base64,")[1][:-1]).decode()
    assert picture.count("<circle") == 1
