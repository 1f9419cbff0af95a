"""Sparse symmetric positive definite matrices: order, Cholesky factor, solutions and entries of the inverse."""
