"""Areas and accuracy of class maps from a stratified random sample of points to label."""
