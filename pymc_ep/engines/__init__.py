"""Algorithms, one a file, and the one loop that drives them."""
