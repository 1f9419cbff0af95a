"""Sparse linear models: latent Gaussian models whose priors are potentials on linear maps of the unknowns."""
