"""Evaluation of language models: perplexity, calibration and uncertainty."""
