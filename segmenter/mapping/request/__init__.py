"""Request of one call: what is mapped, its inputs and its labels."""
