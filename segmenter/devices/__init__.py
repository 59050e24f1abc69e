"""TensorFlow's device settings, made before its devices start, and the tf.distribute strategy."""
