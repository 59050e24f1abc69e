"""Train on parameter servers: roles, the line between chief and members, the loop, its state and its step."""
