"""Review of labels by models that did not learn from them, and of where the next label teaches most."""
