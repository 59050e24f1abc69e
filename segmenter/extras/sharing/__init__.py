"""Runs for others: model card, STAC item, packed file, and removal of private paths."""
