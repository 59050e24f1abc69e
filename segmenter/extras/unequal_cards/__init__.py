"""Deal the tiles of a step to cards of unequal speed."""
