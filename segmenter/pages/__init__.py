"""HTML pages that need no network: charts, tables, pictures; of the coverage report and of runs."""
