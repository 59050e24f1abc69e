"""Recipes that plan themselves: facts of the data, a split in space, and rules for all other settings."""
