"""Training on parameter servers: roles, control connections, the loop, its state and its step."""
