"""Latent Gaussian models: sites on affine maps of a Gaussian vector."""
