"""A recipe from a folder that nobody described: look at files and labels, plan, write the recipe and a page."""
