"""A search of hyper-parameters that many workers share. It knows experiments only by their protocol."""
