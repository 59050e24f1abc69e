"""Settings that TensorFlow takes before it starts its devices, and the tf.distribute strategy."""
