"""Report: the coverage diagnosis as one HTML page that works offline."""

from segmenter.diagnosis.report.sections import headline, html_report

__all__ = ["headline", "html_report"]
