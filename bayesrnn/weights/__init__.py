"""A module's weights as one vector: which they are, where each lies, and how another vector is put in."""
