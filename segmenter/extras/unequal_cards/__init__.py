"""Distribution of a step's tiles to cards of unequal speed."""
