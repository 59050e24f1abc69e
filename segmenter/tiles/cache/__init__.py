"""Packs of decoded pixels on the disk: keys, file format, writer, folder."""
