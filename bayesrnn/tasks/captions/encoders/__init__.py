"""Frozen networks that turn an image into features."""
