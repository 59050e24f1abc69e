"""Feeding: batches prefetched in the order of use, by threads or worker processes."""
