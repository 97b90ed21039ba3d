"""Texts: their sources, vocabularies and tokens."""
