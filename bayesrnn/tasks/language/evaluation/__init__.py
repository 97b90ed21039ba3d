"""How good a language model is, and how sure."""
