"""Measurements shared by several experiments: statistics of predictions, calibration, pruning curves."""
