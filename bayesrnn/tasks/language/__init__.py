"""Language modelling: predicting the next word of a text."""
