"""Tiles of scenes: pairs of image and label, index, statistics, store, augmentation, batches."""
