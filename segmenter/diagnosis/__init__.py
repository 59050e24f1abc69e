"""Diagnosis of class coverage: classes in random and planned batches, and the limiting class."""

from segmenter.diagnosis.data import Diagnosis
from segmenter.diagnosis.facts import USUAL_BATCHES, diagnose
from segmenter.diagnosis.text import table

__all__ = ["USUAL_BATCHES", "Diagnosis", "diagnose", "table"]
