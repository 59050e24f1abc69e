"""Recipe: sections with units and reasons, YAML reading, command-line overrides."""
