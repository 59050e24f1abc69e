"""Which classes do batches hold, now and with a plan, and what limits it: facts of a recipe's coverage."""

from segmenter.diagnosis.data import VERSION, Diagnosis
from segmenter.diagnosis.facts import diagnose
from segmenter.diagnosis.text import table

__all__ = ["VERSION", "Diagnosis", "diagnose", "table"]
