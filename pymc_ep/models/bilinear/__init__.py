"""Bilinear models: observed cells of a matrix, whose predictors are inner products of rows of two latent matrices."""
