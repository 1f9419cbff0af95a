"""Inference algorithms on arrays, one per folder or file, and the loop that drives them."""
