"""Losses, schedules, optimisers, the compiled step, training loop, validation, signals."""
