"""Start of a training: initial weights, normalisation, the recipe's demands on its dataset."""
