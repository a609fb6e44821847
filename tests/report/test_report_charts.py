"""Charts of any finite numbers and any names: well-formed, and nothing drawn outside the frame."""

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.results import Interval
from outrider.report.charts import Bars, Line, bar_chart, interval_chart, line_chart
from outrider.report.scales import thinned, tick_label, ticks, value_range

_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_ANY_NUMBERS = st.floats()
_NAMES = st.text(st.characters(), max_size=40)
_POINTS = st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=12)


def _checked(svg: str) -> ET.Element:
    """Parse the drawing and check that every coordinate lies in its viewBox and that it has a title and a description."""
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert [child.tag for child in root][:2] == ["title", "desc"]
    for element in root.iter():
        xs = [float(element.attrib[key]) for key in ("x", "x1", "x2", "cx") if key in element.attrib]
        ys = [float(element.attrib[key]) for key in ("y", "y1", "y2", "cy") if key in element.attrib]
        for place in element.attrib.get("points", "").split():
            x, y = place.split(",")
            xs.append(float(x))
            ys.append(float(y))
        if element.tag == "rect":
            assert float(element.attrib["width"]) >= 0 and float(element.attrib["height"]) >= 0
            xs.append(xs[0] + float(element.attrib["width"]))
            ys.append(ys[0] + float(element.attrib["height"]))
        assert all(0 <= x <= width for x in xs), ET.tostring(element)
        assert all(0 <= y <= height for y in ys), ET.tostring(element)
    return root


def _texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


@settings(deadline=None)
@given(title=_NAMES, lines=st.lists(st.tuples(_NAMES, _POINTS, st.booleans()), max_size=10))
def test_line_chart_stays_in_its_frame(title: str, lines: list[tuple[str, list[tuple[float, float]], bool]]) -> None:
    svg = line_chart(title, title, x_label=title, y_label=title, lines=[Line(*line) for line in lines])
    _checked(svg)


@settings(deadline=None)
@given(title=_NAMES, series=st.lists(st.tuples(_NAMES, st.lists(st.none() | _ANY_NUMBERS, max_size=20)), max_size=4))
def test_bar_chart_stays_in_its_frame(title: str, series: list[tuple[str, list[float | None]]]) -> None:
    groups = [str(k + 1) for k in range(max((len(values) for _, values in series), default=0))]
    svg = bar_chart(title, title, x_label="position", y_label="share", groups=groups, series=[Bars(*bars) for bars in series])
    _checked(svg)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(_NAMES, st.tuples(_ANY_NUMBERS, _ANY_NUMBERS, _ANY_NUMBERS)), max_size=5))
def test_interval_chart_stays_in_its_frame(rows: list[tuple[str, tuple[float, float, float]]]) -> None:
    intervals = [(name, Interval(value=value, low=low, high=high)) for name, (value, low, high) in rows]
    _checked(interval_chart("speedup", "", x_label="speedup (×)", rows=intervals, reference=1.0))


@pytest.mark.parametrize("points", [[], [(3.0, 2.0)], [(1.0, 5.0), (2.0, 5.0)], [(1.0, math.nan), (2.0, math.inf)]])
def test_few_or_equal_points(points: list[tuple[float, float]]) -> None:
    root = _checked(line_chart("loss", "", x_label="step", y_label="loss", lines=[Line("training", points)]))
    drawn = [p for p in points if math.isfinite(p[1])]
    assert len(root.findall("polyline")) == (len(drawn) > 1)
    assert len(root.findall("circle")) == (len(drawn) == 1)
    assert ("no data" in _texts(root)) == (not drawn)


def test_bars_are_as_high_as_their_values() -> None:
    root = _checked(bar_chart("t", "", x_label="position", y_label="share", groups=["1", "2"], series=[Bars("engine", [1.0, 0.25])]))
    bars = [rect for rect in root.findall("rect") if rect.find("title") is not None]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[1] == pytest.approx(heights[0] / 4, abs=0.1)
    assert [bar.findtext("title") for bar in bars] == ["position 1, engine: 1.000", "position 2, engine: 0.250"]


def test_a_missing_bar_is_not_drawn_as_zero() -> None:
    root = _checked(bar_chart("t", "", x_label="position", y_label="share", groups=["1", "2"], series=[Bars("engine", [0.5, None])]))
    assert len([rect for rect in root.findall("rect") if rect.find("title") is not None]) == 1


def test_axes_name_their_units_and_show_round_ticks() -> None:
    line = Line("training", [(0.0, 1.0), (1200.0, 3.0)])
    texts = _texts(_checked(line_chart("Loss", "", x_label="optimizer step", y_label="loss (nats)", lines=[line])))
    assert {"Loss", "training", "optimizer step", "loss (nats)", "0", "500", "1,000", "1.0", "1.5", "3.0"} <= set(texts)


@given(values=st.lists(st.floats(min_value=-1e300, max_value=1e300), min_size=1, max_size=5))
def test_ticks_lie_in_their_range_and_differ(values: list[float]) -> None:
    low, high = value_range(values)
    shown, step = ticks(low, high, 5)
    slack = 1e-6 * (high - low)
    assert low <= min(values) and max(values) <= high and low < high
    assert 2 <= len(shown) <= 11
    assert all(low - slack <= value <= high + slack for value in shown)
    assert step > 0


@pytest.mark.parametrize(
    ("value", "step", "label"),
    [(0.0, 0.2, "0.0"), (0.6000000001, 0.2, "0.6"), (1500.0, 500.0, "1,500"), (0.25, 0.05, "0.25"), (2e7, 1e7, "2e+07")],
)
def test_tick_labels_have_the_decimals_of_the_step(value: float, step: float, label: str) -> None:
    assert tick_label(value, step) == label


def test_thinning_keeps_the_mean_and_the_ends_near() -> None:
    points = [(float(i), float(i % 2)) for i in range(10_000)]
    short = thinned(points, 100)
    assert len(short) == 100
    assert [y for _, y in short] == pytest.approx([0.5] * 100)
    assert short[0][0] < 100 and short[-1][0] > 9_900
