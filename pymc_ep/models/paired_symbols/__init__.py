"""Paired symbols: pairs of users and items, drawn by popularity and censored by preference."""
