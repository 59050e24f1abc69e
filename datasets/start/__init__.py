"""A recipe from a folder that nobody described: look at its files, plan, write recipe and page."""
