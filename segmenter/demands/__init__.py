"""Demands of a recipe on its data and files, known before anything is trained; loads no TensorFlow."""
