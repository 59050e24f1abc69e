"""HTML pages that work offline: charts, tables, pictures; used by reports of coverage and of runs."""
