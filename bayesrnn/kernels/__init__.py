"""How the formulas of `variational` are run fast: joined into passes over memory, and compiled."""
