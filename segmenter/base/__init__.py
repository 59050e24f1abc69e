"""Hold what every room uses: errors, files, locks, threads, words for the terminal."""
