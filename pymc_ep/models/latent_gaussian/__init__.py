"""Latent Gaussian models: univariate sites on affine maps of a Gaussian vector."""
