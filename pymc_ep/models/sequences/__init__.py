"""Sequences of items by users, under a recurrent network."""
