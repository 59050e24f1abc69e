"""Keep decoded pixels of tiles in packs on the disk: keys, file format, writer, folder."""
