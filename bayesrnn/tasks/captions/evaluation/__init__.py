"""Captions of trained models: decoding, scores, uncertainty."""
