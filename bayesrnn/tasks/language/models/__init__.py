"""Language models: plain modules, independent of the methods that train them."""
