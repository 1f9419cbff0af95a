"""Graphs of prior variances, covariances and roots of the latent Gaussian form.

eta, (n,), are the predictors, x is an affine variable, and w the noise of a block, the zero-mean part of a latent
variable. With R the root of a block, w = R^T z for standard normals z, the coefficients of the block.
"""

import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import AllocDiag
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.jacobian_products import linear_map
from pymc_ep.models.latent_gaussian.form import AffineVariable, LatentGaussian, NoiseBlock

__all__ = [
    "coefficient_map",
    "coefficient_precision",
    "coefficient_variance",
    "cross_covariance",
    "deviations_of",
    "predictor_covariance",
    "predictor_rows",
    "prior_variance",
    "push",
    "scale_of",
    "variances_of",
]


def variances_of(block: NoiseBlock) -> TensorVariable | None:
    """Return the variances, (d,), of noise whose covariance is a diagonal by its graph; else None."""
    return _diagonal_of(block.covariance)


def deviations_of(block: NoiseBlock) -> TensorVariable | None:
    """Return the standard deviations, (d,), of noise whose root is a diagonal by its graph; else None."""
    return _diagonal_of(block.root)


def scale_of(block: NoiseBlock) -> TensorVariable:
    """Return the scale of a block: its factor, (d, k), if any, else its variances, (d,), or its covariance, (d, d)."""
    if block.factor is not None:
        return block.factor
    variances = variances_of(block)
    return block.covariance if variances is None else variances


def _diagonal_of(matrix: TensorVariable) -> TensorVariable | None:
    node = matrix.owner
    if node is None or not isinstance(node.op, AllocDiag) or node.op.offset or matrix.ndim != 2:
        return None
    return node.inputs[0]


def push(rows: TensorVariable, output: TensorVariable, block: NoiseBlock) -> TensorVariable:
    """Return rows of the block's noise, (b, d), mapped by the linear part of `output`, (b, size of output)."""
    batched = rows.reshape((rows.shape[0], *block.shape)) if block.noise.ndim != 1 else rows
    mapped = linear_map(output, block.noise)(batched)
    return mapped if mapped.ndim == 2 else mapped.reshape((rows.shape[0], -1))


def _block_covariance(x: TensorVariable, y: TensorVariable, block: NoiseBlock) -> TensorVariable:
    """Return X C Y^T, (size of x, size of y), for the block's covariance C and the maps X and Y to x and y."""
    # Rows of C are mapped to C X^T, and rows of its transpose X C to X C Y^T.
    return push(push(block.covariance, x, block).T, y, block)


def _covariance(form: LatentGaussian, x: TensorVariable, y: TensorVariable) -> TensorVariable:
    """Return Cov(x, y), (size of x, size of y), a sum over the blocks on which both x and y depend."""
    behind_x, behind_y = set(ancestors([x])), set(ancestors([y]))
    shared = [b for b in form.blocks if b.noise in behind_x and b.noise in behind_y]
    if not shared:
        return pt.zeros((x.size, y.size))
    terms = [_block_covariance(x, y, block) for block in shared]
    return terms[0] if len(terms) == 1 else pt.add(*terms)


def predictor_covariance(form: LatentGaussian) -> TensorVariable:
    """Return the prior covariance K, (n, n), of all predictors."""
    eta = form.predictor
    return form.at_zero_noise(_covariance(form, eta, eta))


def cross_covariance(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return Cov(x, eta), (size of x, n), of an affine variable x and the predictors eta."""
    eta = form.predictor
    if variable.block is not None:
        assert variable.block.factor is not None, "a block with an origin has a factor"
        # With w = L v and eta = m0 + A w, Cov(v, eta) = L^T A^T.
        return form.at_zero_noise(push(variable.block.factor.T, eta, variable.block))
    return form.at_zero_noise(_covariance(form, variable.expression, eta))


def prior_variance(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return the prior variances, (size of x,), of the elements of an affine variable x, from its covariance."""
    x = variable.expression
    if variable.block is not None:
        return pt.ones(variable.block.origin_shape[0])
    return form.at_zero_noise(pt.diagonal(_covariance(form, x, x)))


def _rows(form: LatentGaussian, x: TensorVariable) -> TensorVariable:
    """Return R_x, (p, size of x): x = E[x] + R_x^T z for the independent standard normals z, (p,), of all blocks."""
    behind = set(ancestors([x]))
    # w = R^T z, so that A w = (R A^T)^T z; rows of R are mapped to R A^T.
    row_blocks = [
        push(b.root, x, b) if b.noise in behind else pt.zeros((b.root.shape[0], x.size), dtype=x.dtype)
        for b in form.blocks
    ]
    return row_blocks[0] if len(row_blocks) == 1 else pt.concatenate(row_blocks)


def predictor_rows(form: LatentGaussian) -> TensorVariable:
    """Return R, (p, n), with K = R^T R: predictors are m0 + R^T z for the standard normals z, (p,), of all blocks."""
    return form.at_zero_noise(_rows(form, form.predictor))


def coefficient_precision(form: LatentGaussian) -> TensorVariable:
    """Return the prior precision of the coefficients z, (p,): 0 where the prior is flat, else 1."""
    precisions = [(pt.zeros if b.flat else pt.ones)(b.root.shape[0]) for b in form.blocks]
    return form.at_zero_noise(pt.concatenate(precisions))


def coefficient_map(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return Cov(x, z), (size of x, p), of an affine variable x and the standard normals z, (p,), of all blocks."""
    if variable.block is None:
        return form.at_zero_noise(_rows(form, variable.expression)).T
    # The variable is the part of z that belongs to its block.
    sizes = [b.root.shape[0] for b in form.blocks]
    size = variable.block.root.shape[0]
    column_blocks = [pt.eye(k) if b is variable.block else pt.zeros((size, k)) for b, k in zip(form.blocks, sizes)]
    return form.at_zero_noise(pt.concatenate(column_blocks, axis=1))


def coefficient_variance(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return the prior variances, (size of x,), of the elements of an affine variable x, from its `coefficient_map`."""
    # x = E[x] + C z has Var(x_i) = sum_k C_ik^2.
    return pt.sqr(coefficient_map(form, variable)).sum(axis=1)
