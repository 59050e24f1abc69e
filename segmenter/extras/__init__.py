"""Hold what the core works without: the doors (commands, api) name these, the core imports none of them."""
