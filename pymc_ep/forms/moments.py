"""Prior means and covariances of the latent Gaussian form, symbolically."""

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_ep.forms.latent_gaussian import AffineVariable, LatentGaussian, NoiseBlock
from pymc_ep.forms.linear_maps import linear_map

__all__ = ["cross_covariance", "noise_covariance", "predictor_moments", "prior_variance"]


def _push(rows: TensorVariable, output: TensorVariable, block: NoiseBlock) -> TensorVariable:
    """Apply the linear part of `output` in the block's noise to each row: (b, d) -> (b, size of output)."""
    batched = rows.reshape((rows.shape[0], *block.shape)) if block.noise.ndim != 1 else rows
    mapped = linear_map(output, block.noise)(batched)
    return mapped if mapped.ndim == 2 else mapped.reshape((rows.shape[0], -1))


def _block_covariance(x: TensorVariable, y: TensorVariable, block: NoiseBlock) -> TensorVariable:
    """Return X C Y^T for the maps X and Y of x and y, (size of x, size of y)."""
    return _push(_push(block.covariance, x, block).T, y, block)


def _sum(terms: list[TensorVariable]) -> TensorVariable:
    return terms[0] if len(terms) == 1 else pt.add(*terms)


def predictor_moments(form: LatentGaussian) -> tuple[TensorVariable, TensorVariable]:
    """Return the prior mean m0, (n,), and covariance K, (n, n), of all predictors."""
    eta = form.predictor
    covariance = _sum([_block_covariance(eta, eta, block) for block in form.blocks])
    return form.at_zero_noise(eta), form.at_zero_noise(covariance)


def noise_covariance(form: LatentGaussian, block: NoiseBlock) -> TensorVariable:
    """Return Cov(w, eta) of one block, (d, n)."""
    return form.at_zero_noise(_push(block.covariance, form.predictor, block))


def cross_covariance(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return Cov(x, eta) of an affine variable x, (size of x, n)."""
    eta = form.predictor
    if variable.block is not None:
        return form.at_zero_noise(_push(variable.block.factor.T, eta, variable.block))
    return form.at_zero_noise(_sum([_block_covariance(variable.expression, eta, b) for b in form.blocks]))


def prior_variance(form: LatentGaussian, variable: AffineVariable) -> TensorVariable:
    """Return the prior variance of each element of an affine variable, (size of x,)."""
    x = variable.expression
    if variable.block is not None:
        return pt.ones(variable.block.factor.shape[1])
    own = [] if variable.extra is None else [pt.diagonal(variable.extra)]
    return form.at_zero_noise(_sum([pt.diagonal(_block_covariance(x, x, b)) for b in form.blocks] + own))
