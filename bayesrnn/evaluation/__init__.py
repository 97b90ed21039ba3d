"""Measurements shared by several experiments: statistics, calibration, abstaining, pruning curves."""
