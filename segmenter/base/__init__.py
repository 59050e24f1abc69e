"""Ground floor that every room uses: errors, files, locks, threads, words for the terminal."""
