"""Rewriting of a model's graphs as graphs of hyperparameter values and independent Gaussian noise blocks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytensor.tensor as pt
from pymc import Model
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Apply
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import applys_between
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import Cholesky
from pymc_ep.graphs.gaussian_precisions import SparsePrecision, sparse_precision_of
from pymc_ep.graphs.gaussian_variables import Gaussian, PriorOf
from pymc_ep.graphs.queries import core_op, depends_on, without_views
from pymc_ep.models.latent_gaussian.form import MANY_COEFFICIENTS, NoiseBlock

__all__ = ["NoiseGraphs", "absorb_factor"]


class NoiseGraphs:
    """Rewriter of graphs, with each latent variable replaced by its conditional mean plus noise.

    Parameters
    ----------
    model : pymc.Model
    latents : sequence of TensorVariable
        Gaussian random variables, in the model's order.
    prior : callable
        ``prior(rv)`` returns the `Gaussian` of a latent variable.

    Attributes
    ----------
    noise : dict
        Noise variable of each latent variable.
    """

    def __init__(self, model: Model, latents: Sequence[TensorVariable], prior: PriorOf):
        self.model = model
        self.latents = list(latents)
        self.noise = {rv: rv.type(name=f"{rv.name}_noise") for rv in self.latents}
        self._gaussians = {rv: _latent_gaussian(rv, prior) for rv in self.latents}
        self._shapes = {rv: infer_shape([rv], (), ())[0] for rv in self.latents}
        self._in_noise: dict = {}
        self._in_scaled: dict = {}
        self._about: dict = {}
        for rv in self.latents:
            about_mean = self._about_mean(rv)
            transform = model.rvs_to_transforms.get(rv)
            # With a linear transform, the value variable holds the coordinates of the transformed variable.
            value = about_mean if transform is None else transform.forward(about_mean, *rv.owner.inputs)
            self._in_noise[model.rvs_to_values[rv]] = value
            self._about[rv] = about_mean

    def __call__(self, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs with random variables replaced by hyperparameter values and noise."""
        written = without_views(self._replace(self._by_values(expressions)))
        return graph_replace(written, self._in_scaled, strict=False) if self._in_scaled else written

    def substitute(self, replacement: Mapping[TensorVariable, TensorVariable]) -> None:
        """Replace noise by graphs of other noise in all graphs that are returned from now on."""
        self._in_scaled = dict(replacement)

    def _about_mean(self, rv: TensorVariable) -> TensorVariable:
        """Return a latent variable as mean plus noise; earlier latent variables in its mean are rewritten already."""
        noise, mean = self.noise[rv], self._gaussians[rv].mean
        if mean is None:
            return noise
        graph = self([mean(self._shapes[rv])])[0]
        return noise if _is_constant_zero(graph) else pt.add(graph.astype(noise.dtype), noise)

    def _by_values(self, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs in which random variables are replaced by their value variables.

        A latent variable with a transform is replaced by its mean plus noise, not by the inverse transform of its
        coordinates.
        """
        transformed = [rv for rv in self._about if self.model.rvs_to_transforms.get(rv) is not None]
        written = self.model.replace_rvs_by_values([*expressions, *transformed])
        if not transformed:
            return written
        given_back = dict(zip(written[len(expressions) :], (self._about[rv] for rv in transformed)))
        return graph_replace(written[: len(expressions)], given_back, strict=False)

    def _replace(self, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
        return graph_replace(list(expressions), self._in_noise, strict=False) if self._in_noise else list(expressions)

    def blocks(self) -> list[NoiseBlock]:
        """Return the noise block of each latent variable."""
        zeros: dict[TensorVariable, TensorVariable] = {}
        blocks = []
        for rv in self.latents:
            blocks.append(self._block(rv, zeros))
            zeros[self.noise[rv]] = pt.zeros(blocks[-1].shape, dtype=rv.dtype)
        return blocks

    def _block(self, rv: TensorVariable, zeros: dict[TensorVariable, TensorVariable]) -> NoiseBlock:
        """Return one block; `zeros` replace the noise of earlier blocks in its shape."""
        gaussian, shape = self._gaussians[rv], self._shapes[rv]
        excess = pt.zeros(()) if gaussian.log_excess is None else gaussian.log_excess(shape)
        covariance, root, excess, *shape = self([gaussian.covariance(shape), gaussian.root(shape), excess, *shape])
        if depends_on(shape, zeros):
            shape = graph_replace(shape, zeros, strict=False)
        return NoiseBlock(rv.name, self.noise[rv], tuple(shape), covariance, root, excess, gaussian.flat)

    def with_precisions(
        self, blocks: Sequence[NoiseBlock], sizes: Mapping[TensorVariable, tuple[int, ...]]
    ) -> list[NoiseBlock]:
        """Return the blocks with their sizes, and with their sparse precisions where coefficients are many.

        `sizes` are the shapes of the blocks' noise.
        """
        blocks = [replace(block, sizes=sizes[block.noise]) for block in blocks]
        if sum(math.prod(block.sizes) for block in blocks) < MANY_COEFFICIENTS:
            return blocks
        by_name = {rv.name: rv for rv in self.latents}
        return [
            block if block.factor is not None else self._with_precision(block, by_name[block.name]) for block in blocks
        ]

    def _with_precision(self, block: NoiseBlock, rv: TensorVariable) -> NoiseBlock:
        sizes = block.sizes[::-1] if block.of_columns else block.sizes
        model_precision = sparse_precision_of(rv, sizes)
        if model_precision is None:
            return block
        graphs = {name: graph for name, graph in model_precision.graphs().items() if graph is not None}
        written = replace(model_precision, **dict(zip(graphs, self(list(graphs.values())))))
        # By structure: that of a dense precision takes its factor.
        precision: SparsePrecision | None = written
        if block.elementwise:
            precision = written.scaled(block.outer_scale)
        elif block.outer_scale is not None:
            precision = written.mixed(block.outer_scale, sizes, of_columns=block.of_columns)
        return replace(block, log_excess=written.log_excess, precision=precision)

    def is_central(self, rv: TensorVariable) -> bool:
        """Whether the mean of a latent variable is zero, so that it is its noise."""
        return self._about[rv] is self.noise[rv]

    def is_standard(self, rv: TensorVariable) -> bool:
        """Whether a latent variable is a vector of independent standard normals, whatever the hyperparameters."""
        op = rv.owner.op
        if rv.ndim != 1 or op.name != "normal":
            return False
        mean, sigma = op.dist_params(rv.owner)
        return _is_constant_zero(mean) and _constant(sigma) == 1


def _latent_gaussian(rv: TensorVariable, prior: PriorOf) -> Gaussian:
    gaussian = prior(rv)
    assert gaussian is not None, "latent variables are Gaussian"
    return gaussian


def _constant(variable: TensorVariable) -> float | None:
    try:
        return float(get_underlying_scalar_constant_value(variable))
    except NotScalarConstantError:
        return None


def _is_constant_zero(variable: TensorVariable) -> bool:
    return _constant(variable) == 0


def absorb_factor(
    block: NoiseBlock, outputs: Sequence[TensorVariable], noise: Sequence[TensorVariable]
) -> tuple[NoiseBlock, dict] | None:
    """Replace a standard normal v that enters as L v alone, with L the Cholesky factor of C, by w = L v.

    A non-centred GP has such a v. With w, of covariance C, neither the factorisation nor its derivative is needed to
    form the covariance of the predictors. Products with any other matrix, such as a design, are left as they are.

    Parameters
    ----------
    block : NoiseBlock
        Block of v.
    outputs : sequence of TensorVariable
        All graphs that contain v.
    noise : sequence of TensorVariable
        Noise of all blocks, on which L must not depend.

    Returns
    -------
    (NoiseBlock, dict) or None
        The block of w, and a dict from the graph of L v to w, which replaces it. None where v enters in another way.
    """
    v = block.noise
    nodes = list(applys_between(list(noise), outputs))
    product, column = _only_product(v, nodes)
    if product is None or v in outputs:
        return None
    factor = product.owner.inputs[0]
    if not _is_cholesky(factor) or depends_on([factor], noise):
        return None
    w = pt.vector(f"{v.name}_factored", dtype=v.dtype)
    (covariance,) = factor.owner.inputs
    # w = L v has the covariance C = L L^T = R^T R with the root R = L^T.
    replacement = {product: w[:, None] if column else w}
    excess = block.log_excess
    absorbed = NoiseBlock(block.name, w, block.shape, covariance, factor.T, excess, False, factor, v, block.shape)
    return absorbed, replacement


def _only_product(v: TensorVariable, nodes: Sequence[Apply]) -> tuple[TensorVariable | None, bool]:
    """Return the matrix product that is the only use of v, and whether v has a new axis there.

    The product is None where there is another use.
    """
    users = [n for n in nodes if v in n.inputs]
    column = False
    # The use may be a distribution, whose first output is a random generator.
    widened = users[0].outputs[0] if len(users) == 1 else None
    if isinstance(widened, TensorVariable) and widened.ndim == 2 and widened.type.shape[1] == 1:
        column, v = True, widened
        users = [n for n in nodes if v in n.inputs]
    if len(users) != 1:
        return None, column
    if isinstance(core_op(users[0].op), Dot) and users[0].inputs[1] is v and users[0].inputs[0].ndim == 2:
        return users[0].outputs[0], column
    return None, column


def _is_cholesky(factor: TensorVariable) -> bool:
    """Whether a matrix is a lower Cholesky factor, as a non-centred GP has."""
    if factor.owner is None:
        return False
    op = core_op(factor.owner.op)
    return isinstance(op, Cholesky) and op.lower
