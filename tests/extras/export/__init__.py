"""Exported models: what they give, what is refused."""
