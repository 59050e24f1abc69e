"""Runs for others: the model card, the STAC item, the one file to hand over, and what it leaves out."""
