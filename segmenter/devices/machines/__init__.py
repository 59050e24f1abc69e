"""Training over several machines: members, rendezvous, messages."""
