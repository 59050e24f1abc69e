"""Begin a training: weights of others, normalisation, what a recipe demands of its dataset."""
