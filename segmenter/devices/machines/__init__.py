"""Join several machines: members, their meeting, what they tell each other."""
