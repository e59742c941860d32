"""Draws a histogram as a small picture for the page of a check. Names and counts in, markdown out."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from xml.sax.saxutils import escape

from engagement_platform.defs.plot import HEIGHT, LEFT, ROWS_COLOR, TEXT_COLOR, TOP, WIDTH, nice_ceiling

_RIGHT, _BOTTOM = 16, 62


def svg(title: str, names: Sequence[str], counts: Sequence[int]) -> str:
    """One bar for each name, with its count above it."""
    most = nice_ceiling(max(counts, default=0))
    # Two or three bars would be drawn as walls.
    step = (WIDTH - LEFT - _RIGHT) / max(8, len(names))
    base, height = HEIGHT - _BOTTOM, HEIGHT - _BOTTOM - TOP
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="{TEXT_COLOR}">',
        '<rect width="100%" height="100%" rx="6" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" fill="{ROWS_COLOR}" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = base - height * share
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7ee"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share:,.10g}</text>')
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        middle, tall = LEFT + (index + 0.5) * step, height * count / most
        parts.append(
            f'<rect x="{middle - step * 0.4:.1f}" y="{base - tall:.1f}" width="{step * 0.8:.1f}" height="{tall:.1f}" '
            f'fill="{ROWS_COLOR}" opacity=".75"/>'
        )
        if count:
            parts.append(f'<text x="{middle:.1f}" y="{base - tall - 3:.1f}" text-anchor="middle">{count:,}</text>')
        # Slanted: 24 buckets have 24 pixels each, and a name needs 50.
        turned = f'transform="rotate(-40 {middle:.1f} {base + 12})"'
        parts.append(f'<text x="{middle:.1f}" y="{base + 12}" text-anchor="end" {turned}>{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def markdown(title: str, names: Sequence[str], counts: Sequence[int]) -> str:
    """The picture inside markdown, which is how the Dagster UI shows one. The title needs no brackets."""
    picture = base64.b64encode(svg(title, names, counts).encode()).decode()
    return f"![{title}](data:image/svg+xml;base64,{picture})"
