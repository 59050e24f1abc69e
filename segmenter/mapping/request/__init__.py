"""Say what to map: options, inputs, patterns and labels of one call."""
