"""Diagnosis of class coverage: which classes batches hold, at random and with a plan, and what limits it."""

from segmenter.diagnosis.data import VERSION, Diagnosis
from segmenter.diagnosis.facts import USUAL_BATCHES, diagnose
from segmenter.diagnosis.text import table

__all__ = ["USUAL_BATCHES", "VERSION", "Diagnosis", "diagnose", "table"]
