"""Measurements shared by several experiments: calibration and pruning curves."""
