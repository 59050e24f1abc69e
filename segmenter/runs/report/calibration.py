"""Report section on calibration: reliability and risk-coverage charts, with their summary."""

from __future__ import annotations

from collections.abc import Sequence

from segmenter.evaluation.calibration import COVERAGES, Fitted, Measures
from segmenter.pages.layout import FILLER, GREY, HOVER, PLAN, Data, layout, percent_axis
from segmenter.pages.parts import Block, Chart, Paragraph, Table, lines, number, percent, side_by_side
from segmenter.runs.calibration_file import CalibrationFile

_BEFORE, _AFTER = "before", "calibrated"
_LOOKS = {_BEFORE: (FILLER, "circle-open"), _AFTER: (PLAN, "square")}


def calibration_blocks(found: CalibrationFile) -> list[Block]:
    """Return the summary and charts of a run's calibration."""
    fitted = found.fitted
    kind = "a temperature and a bias for each class" if fitted.calibration.shifts else "a temperature"
    text = (
        f"Maps are made with {kind} ({fitted.calibration.temperature:.3g}) fitted on {found.pixels:,} "
        f"pixels of {found.scenes} validation scenes. Measured on scenes left out of the fit, the expected "
        f"calibration error goes from {percent(fitted.before.ece)} to {percent(fitted.after.ece)}. With the "
        f"bias, mIoU of these pixels is {percent(fitted.with_bias.miou)}, without it "
        f"{percent(fitted.temperature.miou)}."
    )
    return [Paragraph(text), *side_by_side(_reliability(fitted), _risk_coverage(fitted))]


def _reliability(fitted: Fitted) -> Chart:
    diagonal = {"type": "scatter", "x": [0, 100], "y": [0, 100], "mode": "lines", "hoverinfo": "skip"}
    data: list[Data] = [diagonal | {"line": {"color": GREY, "dash": "dot"}, "showlegend": False}]
    rows = []
    for name, each in _both(fitted):
        bins = [one for one in each.bins if one[0]]
        hovers = [
            lines(name, f"confidence {percent(c)}: {percent(a)} right", f"{n:,} pixels") for n, c, a in bins
        ]
        data.append(_curve(name, [c for _, c, _ in bins], [a for _, _, a in bins], hovers))
        rows += [[name, number(n), percent(c), percent(a)] for n, c, a in bins]
    look = layout(320, percent_axis("confidence"), percent_axis("right"), showlegend=True)
    title = f"Expected calibration error {percent(fitted.before.ece)} → {percent(fitted.after.ece)}"
    note = "On the dotted line a confidence is the share of pixels that are right; below it, it is too high."
    table = Table("Reliability by bin of confidence", ["Kind", "Pixels", "Confidence", "Right"], rows)
    return Chart("reliability", title, note, {"": {"data": data, "layout": look}}, table)


def _risk_coverage(fitted: Fitted) -> Chart:
    data, rows = [], []
    for name, each in _both(fitted):
        pairs = list(zip(COVERAGES, each.risks, strict=True))
        hovers = [lines(name, f"the surest {percent(c)}: {percent(r)} wrong") for c, r in pairs]
        data.append(_curve(name, COVERAGES, each.risks, hovers))
        rows += [[name, percent(c), percent(r)] for c, r in pairs]
    top = max(1.0, 110 * max(max(each.risks) for _, each in _both(fitted)))
    look = layout(320, percent_axis("surest pixels kept"), percent_axis("wrong", top), showlegend=True)
    after = fitted.after
    title = (
        f"Of all pixels {percent(after.risks[-1])} are wrong, of the surest half {percent(after.risks[9])}"
    )
    note = "Pixels are kept in the order of their confidence; the lower the curve, the better it warns."
    table = Table("Risk by coverage", ["Kind", "Kept", "Wrong"], rows)
    return Chart("risk-coverage", title, note, {"": {"data": data, "layout": look}}, table)


def _both(fitted: Fitted) -> list[tuple[str, Measures]]:
    return [(_BEFORE, fitted.before), (_AFTER, fitted.after)]


def _curve(name: str, x: Sequence[float], y: Sequence[float], hovers: Sequence[str]) -> Data:
    colour, symbol = _LOOKS[name]
    return {
        "type": "scatter",
        "x": [100 * value for value in x],
        "y": [100 * value for value in y],
        "name": name,
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": symbol, "size": 8},
        "customdata": list(hovers),
        "hovertemplate": HOVER,
    }
