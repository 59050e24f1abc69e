"""Scores with their protocol, from one confusion matrix, and figures of them."""
