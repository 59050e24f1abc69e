"""Know what an output folder holds: its journal, its locks, maps that are begun."""
