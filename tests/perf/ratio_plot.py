"""Bars of how many times as fast as a baseline programs are, as one SVG without scripts or fonts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Colours that differ in lightness as well, for a page with a light and one with a dark background.
LIGHT = {
    "text": "#1f2328",
    "faint": "#59636e",
    "grid": "#d1d9e0",
    "won": "#1f77b4",
    "lost": "#c4532b",
}
DARK = {
    "text": "#f0f6fc",
    "faint": "#9198a1",
    "grid": "#3d444d",
    "won": "#58a6ff",
    "lost": "#f0883e",
}
WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 720, 24, 230, 60, 34, 34


@dataclass(frozen=True)
class Bar:
    """One program, and how many times as fast as the baseline it is."""

    label: str
    ratio: float


def ratio_plot(bars: Sequence[Bar], *, dark: bool) -> str:
    """An SVG of ``bars`` from top to bottom, with a line at 1.

    Args:
        bars: at least one; ratios are above 0.
        dark: for a dark background.

    Returns:
        The text of an SVG file. Bars below 1 have another colour than those that gained.
    """
    colours = DARK if dark else LIGHT
    height = TOP + ROW * len(bars) + BOTTOM
    most = max(bar.ratio for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    drawn = [_ticks(most, scale, height, colours)]
    drawn += [_bar(bar, TOP + ROW * i, scale, colours) for i, bar in enumerate(bars)]
    described = "; ".join(f"{bar.label} {bar.ratio:.2f}" for bar in bars)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>Speed relative to Inductor in the same mode</title>\n"
        f"<desc>{escape(described)}</desc>\n"
        f'<text x="{LEFT}" y="18" fill="{colours["faint"]}">times as fast as Inductor</text>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _ticks(most: float, scale: float, height: int, colours: dict[str, str]) -> str:
    lines = []
    for at in range(int(most) + 1):
        x = LEFT + at * scale
        colour, width = (colours["text"], 1.5) if at == 1 else (colours["grid"], 1)
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - BOTTOM + 4}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
            f'<text x="{x:.1f}" y="{height - BOTTOM + 20}" text-anchor="middle" '
            f'fill="{colours["faint"]}">{at}×</text>'
        )
    return "\n".join(lines)


def _bar(bar: Bar, y: int, scale: float, colours: dict[str, str]) -> str:
    colour = colours["won" if bar.ratio >= 1 else "lost"]
    end = LEFT + bar.ratio * scale
    return (
        f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end" fill="{colours["text"]}">'
        f"{escape(bar.label)}</text>"
        f'<rect x="{LEFT}" y="{y + 4}" width="{bar.ratio * scale:.1f}" height="{ROW - 8}" fill="{colour}"/>'
        f'<text x="{end + 6:.1f}" y="{y + 16}" fill="{colours["text"]}">{bar.ratio:.2f}×</text>'
    )
