"""Digits: image classification with feed-forward networks."""
