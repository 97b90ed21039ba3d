"""Language models, which know nothing of the methods that train them."""
