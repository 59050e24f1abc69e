"""Recipe: its sections with units and reasons, reading it from YAML, overrides from the command line."""
