"""Digits: pictures to be classified, by networks without recurrence."""
