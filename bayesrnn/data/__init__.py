"""Minibatches, and downloads. Depends on torch, and on no other part of the package."""
