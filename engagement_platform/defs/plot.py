"""Draws bars, and a line over them, as a small picture for the pages of Dagster's UI. Figures in, markdown out.

SVG written here and no PNG of a library: each event of a run keeps one in the event log, where 2 KB instead of 15 to 30
count. So all bars are one path, and so are all points of the line.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 640, 230, 52, 44, 34
_BARS, _LINE, _TEXT = "#4f7cff", "#e07b00", "#5b6472"


def picture(
    title: str,
    counts: Sequence[int],
    *,
    names: Sequence[str] = (),
    footer: str = "",
    line: Sequence[float | None] = (),
    line_title: str = "",
) -> str:
    """A bar for each count (left scale), with its name below it where there are names, as markdown.

    line: a figure for each bar (right scale); None is a gap.
    """
    heights, most = _heights(counts)
    points, most_line = _heights(line)
    # Few bars would be drawn as walls.
    step = (_WIDTH - _LEFT - _RIGHT) / max(10, len(counts))
    base = _HEIGHT - (62 if names else 28)
    scale = base - _TOP
    parts = [
        _text(_LEFT, 18, title, f'fill="{_BARS}" font-weight="bold"'),
        _text(_WIDTH - _RIGHT, 18, line_title, f'fill="{_LINE}" font-weight="bold" text-anchor="end"'),
        _text(_LEFT, _HEIGHT - 9, footer),
    ]
    for share in (0.0, 0.5, 1.0):
        y = base - scale * share
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7ee"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{most * share:,.10g}", 'text-anchor="end"'))
        parts += [_text(_WIDTH - _RIGHT + 6, y + 4, f"{most_line * share:,.10g}")] if line else []
    bars = "".join(
        f"M{_LEFT + (index + 0.1) * step:.1f} {base}v-{scale * (height or 0):.1f}h{step * 0.8:.1f}V{base}"
        for index, height in enumerate(heights)
    )
    parts.append(f'<path d="{bars}" fill="{_BARS}" opacity=".75"/>')
    for index, name in enumerate(names):
        x = _LEFT + (index + 0.5) * step
        shown = f"{counts[index]:,}" if counts[index] else ""
        parts.append(_text(x, base - scale * (heights[index] or 0) - 3, shown, 'text-anchor="middle"'))
        # Slanted: 24 buckets have 24 pixels each, and a name needs 50.
        parts.append(_text(x, base + 12, name, f'text-anchor="end" transform="rotate(-40 {x:.1f} {base + 12})"'))
    drawn = [(_LEFT + (i + 0.5) * step, base - scale * point) for i, point in enumerate(points) if point is not None]
    joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
    parts.append(f'<path d="{"M" if joined else ""}{joined}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    # A line of no length with round ends is a dot.
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in drawn)
    parts.append(f'<path d="{dots}" stroke="{_LINE}" stroke-width="5" stroke-linecap="round"/>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        f'font-size="11" fill="{_TEXT}"><rect width="100%" height="100%" rx="6" fill="#fff"/>{"".join(parts)}</svg>'
    )
    in_words = ", ".join(filter(None, (title, footer)))
    return f"![{in_words}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _text(x: float, y: float, text: str, how: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" {how}>{escape(text)}</text>'


def _heights(values: Sequence[float | None]) -> tuple[list[float | None], float]:
    """Each value as a share of the scale, and the scale: 1, 2 or 5 times a power of ten, at least 1."""
    largest, scale = max((value for value in values if value is not None), default=0), 1.0
    while scale < largest:
        scale *= 2.5 if f"{scale:.0e}".startswith("2") else 2
    return [None if value is None else value / scale for value in values], scale
