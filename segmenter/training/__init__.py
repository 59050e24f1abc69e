"""Losses, schedules, optimisers, the compiled step, the loop, validation, signals."""
