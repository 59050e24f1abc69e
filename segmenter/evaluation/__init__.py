"""Scores of maps against labels, each with its protocol, and figures."""
