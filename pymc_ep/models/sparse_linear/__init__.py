"""Sparse linear models: latent Gaussian ones whose priors are potentials on linear maps of the coefficients."""
