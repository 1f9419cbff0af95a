"""Algorithms on arrays, one a folder or file, and the one loop that drives them."""
