"""How good a model is, and how sure."""
