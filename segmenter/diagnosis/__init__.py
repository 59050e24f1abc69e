"""Diagnosis of class coverage: which classes batches hold, at random and with a plan, and what limits it."""

from segmenter.diagnosis.data import VERSION, Diagnosis
from segmenter.diagnosis.facts import diagnose
from segmenter.diagnosis.text import table

__all__ = ["VERSION", "Diagnosis", "diagnose", "table"]
