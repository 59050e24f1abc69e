"""Weight updates: rules, schedules, averages, and the check that replicas agree."""
