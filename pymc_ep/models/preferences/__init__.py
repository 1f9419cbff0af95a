"""Preferences: pairwise comparisons by users whose utilities share a Gaussian prior."""
