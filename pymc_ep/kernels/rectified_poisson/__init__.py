"""Tilted moments of the rectified-linear Poisson site."""
