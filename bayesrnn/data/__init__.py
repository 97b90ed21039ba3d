"""Where minibatches come from. Knows torch; knows nothing of the rest of the package."""
