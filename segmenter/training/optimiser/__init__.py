"""Update the weights: rules, schedules, averages, and the check that replicas agree."""
