"""Report: the coverage diagnosis as one HTML page that works offline."""

from segmenter.diagnosis.report.sections import html_report

__all__ = ["html_report"]
