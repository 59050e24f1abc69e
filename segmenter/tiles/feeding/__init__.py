"""Feeding: batches made ahead, in the order of their need, by threads or by worker processes."""
