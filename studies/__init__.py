"""Studies that answered one question once; kept with their results, outside of the suite and of the lint."""
