"""Recognisers: from a `pm.Model` to the mathematical form that an engine solves."""
