"""Optional parts of the program: commands and API name them, the core imports none of them."""
