"""What a recipe asks of its data and files, known before anything is trained; loads no TensorFlow."""
