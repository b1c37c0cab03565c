"""The plot of ratios: well-formed, scaled, and with another colour for what lost."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.perf.ratio_plot import DARK, LIGHT, Bar, ratio_plot

SVG = "{http://www.w3.org/2000/svg}"
BARS = [Bar("a < b", 3.0), Bar("even", 1.0), Bar("lost", 0.75)]


@pytest.mark.parametrize(("dark", "colours"), [(False, LIGHT), (True, DARK)])
def test_bars_are_as_long_as_their_ratios(dark: bool, colours: dict[str, str]) -> None:
    drawn = ET.fromstring(ratio_plot(BARS, dark=dark))
    bars = drawn.findall(f"{SVG}rect")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths == pytest.approx([widths[0], widths[0] / 3, widths[0] / 4], abs=0.1)
    assert [bar.attrib["fill"] for bar in bars] == [colours[k] for k in ("won", "won", "lost")]


def test_nothing_leaves_the_picture() -> None:
    drawn = ET.fromstring(ratio_plot([Bar("best", 59.6), Bar("other", 1.2)], dark=False))
    width = float(drawn.attrib["viewBox"].split()[2])
    for bar in drawn.findall(f"{SVG}rect"):
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) < width


def test_labels_and_description_hold_the_figures() -> None:
    drawn = ET.fromstring(ratio_plot(BARS, dark=False))
    texts = [text.text for text in drawn.findall(f"{SVG}text")]
    assert "a < b" in texts
    assert "0.75×" in texts
    described = drawn.find(f"{SVG}desc")
    assert described is not None
    assert described.text == "a < b 3.00; even 1.00; lost 0.75"
