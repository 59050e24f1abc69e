"""Request of one call: options, inputs and labels."""
