"""Language models: the next word of a text."""
