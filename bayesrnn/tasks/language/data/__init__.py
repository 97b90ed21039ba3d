"""Texts: where they come from, and their words as numbers."""
