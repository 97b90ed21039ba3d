"""Plain modules that have never heard of Bayes."""
