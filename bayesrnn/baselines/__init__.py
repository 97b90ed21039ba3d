"""What Bayes by Backprop is compared with."""
