"""Sparse fields and wavelet trees as Gaussian variables: their flat parts, without the potentials, which are sites."""

from dataclasses import replace

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.gaussian_variables import Gaussian, Shape, flat_prior
from pymc_ep.graphs.random_nodes import parameters_of

__all__ = ["flat_part_of_field", "flat_part_of_tree"]


def flat_part_of_field(rv: TensorVariable) -> Gaussian:
    """Return the flat prior of a sparse field as a Gaussian variable, without the potentials."""
    flat, parameters = flat_prior(rv), parameters_of(rv)

    def log_excess(shape: Shape) -> TensorVariable:
        assert flat.log_excess is not None, "flat priors have one"
        return flat.log_excess(shape) + rv.owner.op.log_excess(parameters)

    return replace(flat, covariance_inputs=tuple(parameters), log_excess=log_excess)


def flat_part_of_tree(rv: TensorVariable) -> Gaussian:
    """Return the flat prior of a wavelet tree as a Gaussian variable, without the potentials."""
    return replace(flat_prior(rv), covariance_inputs=tuple(parameters_of(rv)))
