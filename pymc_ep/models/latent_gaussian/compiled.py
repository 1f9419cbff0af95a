"""Compiled functions of the latent Gaussian form.

They hold for every value of the hyperparameters and, where data are shared variables, for data of every length.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiling
from pymc_ep.engines.prior import Prior, perturbed
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.hyper_functions import row_variables
from pymc_ep.graphs.jacobian_products import batch
from pymc_ep.graphs.queries import depends_on
from pymc_ep.graphs.shared_values import exchanged
from pymc_ep.models.latent_gaussian.constant_design import Design, DesignMatrix, VariableMap
from pymc_ep.models.latent_gaussian.form import MANY_COEFFICIENTS, AffineVariable, NoiseBlock
from pymc_ep.models.latent_gaussian.precision_design import (
    PrecisionDesign,
    UnknownsMap,
    lack_of_precisions,
    precisions_of,
)
from pymc_ep.models.latent_gaussian.site_functions import NOTHING, EvaluatedRows, SiteFunctions
from pymc_ep.models.latent_gaussian.space import MOST_COEFFICIENTS, SOLVERS, Solver, choose_solver
from pymc_ep.models.latent_gaussian.sparse_maps import SparseMaps
from pymc_ep.models.latent_gaussian.values import AffineMoments, NoiseMoments
from pymc_ep.numerics.backend.namespace import Array, to_jax
from pymc_ep.numerics.gaussian.block_elimination import Blocks
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.observation_space import DensePrior
from pymc_ep.numerics.gaussian.protocol import GaussianPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import LEAST_BLOCKS, SparseFactorPrior

__all__ = ["CompiledLatentGaussian"]

_INVERSE = 3.0
"""Time of an inverse of a prior precision, with its root and gradients, over the time of a product of two such matrices
in each sweep: a field of 1,063 values with 155 observations took 0.4 s for each value of its hyperparameters."""
_LEAST_DENSE, _GAIN = 1e8, 4.0
"""Multiplications of the solver chosen so far, `work`, from which a sparse precision is considered, and the least
factor by which it must reduce their number to be chosen."""


class CompiledLatentGaussian(SiteFunctions):
    """Compiled functions of a `LatentGaussian`, with the parameters of `SiteFunctions`."""

    most_draws = 1000
    """Default number of draws of a chain: PyMC's own default."""
    sweep = 1.0
    """Time of an EP sweep, in units of the time of `work` multiplications: `work` counts one sweep."""
    _fitted: "tuple[CompiledLatentGaussian, Mapping[SharedVariable, np.ndarray]] | None" = None
    """Form and data of a fit, from which the prior follows after the model's data have changed; None without a fit."""

    def is_current(self) -> bool:
        """Whether the form holds for the present shapes of its data.

        Sparse precisions hold for the shapes at which they were read. From `MANY_COEFFICIENTS` coefficients on they
        must have been read.
        """
        latent = [(b, shape) for b, shape in zip(self.form.blocks, self._noise_sizes()) if not b.observation_noise]
        if any(block.precision is not None and block.sizes != shape for block, shape in latent):
            return False
        before = sum(math.prod(block.sizes) for block, _ in latent)
        return before >= MANY_COEFFICIENTS or sum(math.prod(shape) for _, shape in latent) < MANY_COEFFICIENTS

    def solve_in(self, solver: str) -> None:
        """Select the representation of prior and posterior, by name or ``"auto"``."""
        observations = sum(len(y) for y in self.residuals())
        coefficients = int(self._coefficients(*self.unpack(self.start)).sum())
        flat = [b.name for b in self.form.blocks if b.flat]
        independent = all(self.independent)
        self.sizes = observations, coefficients
        """Numbers of observations and of coefficients."""
        self.solver: Solver = choose_solver(solver, observations, coefficients, flat, independent=independent)
        many = LEAST_BLOCKS <= coefficients <= MOST_COEFFICIENTS * observations
        if solver == "auto" and self.solver.name == "observations" and independent and many:
            dense, self.solver = self.solver, choose_solver("coefficients", observations, coefficients, flat)
            if self.blocks is None:
                self.solver = dense
        if solver == "auto" and self._prefers_precision():
            self.solver = SOLVERS["precision"]
        if self.solver.name == "precision" and self.on_jax:
            raise ValueError(
                f"solver={solver!r} runs on the host, as sparse factors have no body of JAX; leave out device= and "
                f"compile_kwargs={{'mode': 'JAX'}}, or the solver: then JAX has dense matrices."
            )
        if self.solver.name == "precision" and self._sparse_design() is None:
            raise ValueError(
                f"solver={solver!r} needs {lack_of_precisions(self.form, coefficients, self._maps.constant)}"
            )

    def _prefers_precision(self) -> bool:
        """Whether a sparse precision takes far fewer operations than the solver chosen so far."""
        if self.on_jax or self.work < _LEAST_DENSE:
            return False
        design = self._sparse_design()
        return design is not None and _GAIN * design.work < self.work

    @property
    def work(self) -> float:
        """Multiplications of an EP sweep, to an order of magnitude.

        With dense algebra they are n^3 in the space of n observations, and n p^2 in the space of p coefficients. To
        these, inverses of prior precisions are added, which are computed anew for each value of the hyperparameters. A
        sparse precision and a division into blocks count their own multiplications.
        """
        observations, coefficients = self.sizes
        if (precision := self.precision) is not None:
            return precision.work
        if (blocks := self.blocks) is not None:
            return blocks.work
        of_sites = float(observations) * (observations if self.solver.name == "observations" else coefficients) ** 2
        return of_sites + _INVERSE * float(sum(math.prod(block.sizes) ** 3 for block in self._inverted))

    @cached_property
    def _inverted(self) -> list[NoiseBlock]:
        """Blocks whose dense covariance is an inverse that depends on hyperparameters."""
        return [
            block
            for block in self.form.blocks
            if (precision := block.precision) is not None
            and precision.inverted
            and depends_on([precision.values], self.form.hyper_values)
        ]

    @property
    def precision(self) -> PrecisionDesign | None:
        """Sparse precision of the unknowns, for the current data; None for any other solver."""
        return self._sparse_design() if self.solver.name == "precision" else None

    @property
    def scaled_outside(self) -> bool:
        """Whether a large fit is dense because its map to predictors has hyperparameters, as in `sd * standard`."""
        large = self.work > _LEAST_DENSE and not self.on_jax
        return large and precisions_of(self.form) is not None and not self._maps.constant

    @property
    def blocks(self) -> Blocks | None:
        """Division of the coefficients into blocks, for the current data; None where there is none."""
        if not all(self.independent):
            return None
        design = self._design()
        return None if design is None else design.blocks

    def fitted_to(self, data: Mapping[SharedVariable, np.ndarray]) -> Self:
        """Return a copy of the form whose prior follows from `data`, the data of a fit, by shared variable.

        Its affine variables follow from the current data, such as new inputs. Fitted predictors and current variables
        are affine in the same coefficients, so that the posterior of the coefficients given the fitted data determines
        the current variables. The copy is therefore solved in the space of the coefficients, or by a sparse precision
        if the form itself is.
        """
        other, of_fit = self.shallow_copy(), self.shallow_copy()
        solver = "precision" if self.solver.name == "precision" else "coefficients"
        for form in (other, of_fit):
            form.solve_in(solver)
        # The copies have different data, and so must not share the cached design.
        of_fit.__dict__.pop("_maps", None)
        other._fitted = of_fit, data
        return other

    def subset(self, name: str, kept: np.ndarray) -> Self:
        """Return the form whose variable `name` has only the observations at the ravelled indices `kept`, (m,)."""
        return type(self)(self.form.subset(name, kept), self.unpack(self.start), self._compile_kwargs)

    def prior(self, theta: np.ndarray) -> Prior:
        """Return the form's `Prior` at unconstrained hyperparameters `theta`, (p,).

        Raises
        ------
        InvalidDataError
            Where observations and predictor differ in shape, as they may after new data are set.
        """
        if self._fitted is not None:
            form, data = self._fitted
            with exchanged(data):
                return form.prior(theta)
        factors, arrays = self._factors(theta)
        gaussian = self._gaussian(theta, arrays)
        if self.on_jax and not isinstance(gaussian, SparseFactorPrior):
            gaussian = type(gaussian)(*map(to_jax, gaussian))
        return Prior(factors.mean, gaussian, *factors[1:])

    def _gaussian(self, theta: np.ndarray, arrays: list[Any]) -> GaussianPrior:
        if (precision := self.precision) is not None:
            return precision.prior(arrays)
        design = self._design()
        if design is not None:
            return design.prior(arrays)
        if self.solver.prior is not FactorPrior:
            return self.solver.prior(*arrays)

        def perturbed_rows() -> np.ndarray:
            return self._prior(*self.unpack(perturbed(theta)))[-2]

        rows, precision = arrays
        prior = self._maps.varying_prior(rows, precision, perturbed_rows)
        divided = isinstance(prior, SparseFactorPrior) and prior.pattern.blocks is not None
        return FactorPrior(rows, precision) if self.on_jax and not divided else prior

    def _array_cotangents(self, array: Array) -> list[np.ndarray]:
        if (precision := self.precision) is not None:
            return precision.cotangents(np.asarray(array))
        design = self._design()
        if design is not None:
            return design.root_cotangents(np.asarray(array), self._maps.roots)
        return [self._maps.varying_cotangent(array) if self.solver.prior is FactorPrior else array]

    def jointly(self, thetas: np.ndarray, variables: tuple[AffineVariable, ...] | None = None) -> EvaluatedRows:
        """Return arrays at rows of theta, (s, p), which functions of the same rows take as `precomputed`.

        One function evaluates them all, since predictors, affine variables and noise depend on the same covariance. If
        `variables` are given, the arrays are of the predictors and these variables alone. The result is empty unless
        the prior is a `DensePrior`.
        """
        if self.solver.prior is not DensePrior:
            return NOTHING

        def build() -> tuple[Callable[..., Any], dict[Hashable, int]]:
            asked = self.form.affine if variables is None else variables
            graphs: dict[Hashable, list[TensorVariable]] = {
                "predictors": self._predictor_graphs(),
                asked: self._moment_graphs(asked),
            }
            if variables is None:
                graphs["noise"] = self._noise_graphs()
            sizes = {name: len(group) for name, group in graphs.items()}
            return self._function_of_rows([graph for group in graphs.values() for graph in group]), sizes

        function, sizes = self._for_solver(("joint", variables), build)
        arrays = iter(self._of_rows(function, thetas))
        return {name: [next(arrays) for _ in range(size)] for name, size in sizes.items()}

    def predictor_rows(
        self, thetas: np.ndarray, precomputed: EvaluatedRows = NOTHING
    ) -> list[tuple[np.ndarray, GaussianPrior]]:
        """Return, for each row of theta, (s, p), the fields `mean` and `gaussian` of `prior`, in arrays on the host."""
        if self._fitted is not None:
            form, data = self._fitted
            with exchanged(data):
                return form.predictor_rows(thetas)
        rows = zip(thetas, *self._evaluated_rows("predictors", self._predictor_graphs, thetas, precomputed))
        return [(mean, self._gaussian(theta, arrays)) for theta, mean, *arrays in rows]

    def affine_moments(
        self, theta: np.ndarray, variables: Sequence[AffineVariable] | None = None
    ) -> dict[str, AffineMoments]:
        """Return, by name, the prior moments of affine variables at theta, (p,); by default of all in the form."""
        return self.affine_rows(theta[None], variables)[0]

    def affine_rows(
        self,
        thetas: np.ndarray,
        variables: Sequence[AffineVariable] | None = None,
        precomputed: EvaluatedRows = NOTHING,
    ) -> list[dict[str, AffineMoments]]:
        """Return the result of `affine_moments` for each row of theta, (s, p)."""
        variables = self.form.affine if variables is None else tuple(variables)
        constant, others = self._split_by_map(variables)
        out = self._evaluated_moments(thetas, others, precomputed)
        if not constant:
            return out
        roots, means = self._roots_and_means(thetas)
        scales = self.rows.outer_scales(thetas)
        divided = {v.name: scales[v.scaled.name] for v in variables if v.name in constant and v.scaled is not None}
        for k, moments in enumerate(out):
            row_roots = [root[k] for root in roots]
            moments |= {name: map_.moments(means[name][k], row_roots) for name, map_ in constant.items()}
            moments |= {name: moments[name].divided(scale[k]) for name, scale in divided.items()}
        return [{v.name: moments[v.name] for v in variables} for moments in out]

    def noise_rows(self, thetas: np.ndarray, precomputed: EvaluatedRows = NOTHING) -> list[list[NoiseMoments]]:
        """Return, for each row of theta, (s, p), the prior moments of each noise block."""
        out = []
        for arrays in zip(*self._evaluated_rows("noise", self._noise_graphs, thetas, precomputed)):
            rest = iter(arrays)
            out.append(
                [
                    NoiseMoments(next(rest), next(rest), block.flat, *islice(rest, 0 if block.factor is None else 2))
                    for block in self.form.blocks
                ]
            )
        return out

    def root_rows(self, thetas: np.ndarray) -> list[list[np.ndarray]] | None:
        """Return, for each row of theta, each block's root, ones for a sparse precision; None in observation space."""
        if (precision := self.precision) is not None:
            return [[np.ones(size) for size in precision.sizes]] * len(thetas)
        if self.solver.prior is not FactorPrior:
            return None
        return [list(row_roots) for row_roots in zip(*self._roots_and_means(thetas)[0])]

    def describe(self) -> str:
        """Return the text of `pymc_ep.explain`, one line for each part of the form."""
        form = self.form
        number = max(len(group.predictors) for group in form.groups + form.potentials)
        most = {1: "one predictor each", 2: "two predictors"}.get(number, f"{number} predictors")
        lines = [f"form             latent Gaussian: Gaussian variables, seen through likelihoods of {most}"]
        for block, shape in zip(form.blocks, self.rows.noise_shapes(*self.unpack(self.start))):
            how = "standard normal, times a factor of its covariance" if block.factor is not None else "Gaussian"
            if block.outer_scale is not None:
                how = f"Gaussian, times {'its scale' if block.elementwise else 'a matrix'}"
            how = "flat prior" if block.flat else how
            if not block.observation_noise:
                size = int(np.prod(shape))
                lines.append(f"latent           {block.name}: {size} value{'s' if size != 1 else ''}, {how}")
        lines += self._describe_groups()
        blocks, precision = self.blocks, self.precision
        how = self.solver.sentence if blocks is None else f"in the space of the coefficients, {blocks.sentence}"
        if precision is not None:
            how = precision.sentence
        lines.append(f"solver           {how}; operator: the model's own graph")
        return "\n".join(lines)

    def first_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray] | None:
        """Return typical sites for a sparse precision, whose prior may be improper; else None, to start from zero."""
        return self.typical_sites(prior) if self.solver.name == "precision" else None

    def _solver_key(self) -> tuple[Any, ...]:
        return self.solver.name, self._design() is None

    @cached_property
    def _maps(self) -> Design:
        return Design(self.form, self.function)

    def _design(self) -> DesignMatrix | None:
        """Return the cached maps from noise for the current data; None if not constant, or not used by the solver."""
        if self.solver.prior is not FactorPrior:
            return None
        design = self._maps.present(self._start_values, self._noise_sizes)
        # Under JAX the model's own graph gives a dense R, and only blocks need the maps.
        return None if self.on_jax and (design is None or design.blocks is None) else design

    def _sparse_design(self) -> PrecisionDesign | None:
        """Return the constant maps from unknowns of sparse precision, for the current data; None if there are none."""
        if precisions_of(self.form) is None:
            return None
        # Their patterns are of the present shapes, see `is_current`.
        return self._maps.sparse(self._start_values, self._noise_sizes())

    def _start_values(self) -> list[np.ndarray]:
        return self.unpack(self.start)

    def _noise_sizes(self) -> list[tuple[int, ...]]:
        return [tuple(map(int, shape)) for shape in self.rows.noise_shapes(*self._start_values())]

    @property
    def _arrays(self) -> list[TensorVariable]:
        if self.solver.name == "precision":
            return self._maps.precisions
        design = self._design()
        return [self.solver.array(self.form)] if design is None else self._maps.roots

    @property
    def _constants(self) -> Sequence[TensorVariable]:
        return self.solver.constants(self.form) if self._design() is None else ()

    def _predictor_graphs(self) -> list[TensorVariable]:
        """Return the graphs of the prior mean of all predictors and of the arrays that `_gaussian` takes."""
        return [self.form.at_zero_noise(self.form.residual_predictor), *self._arrays, *self._constants]

    def _split_by_map(
        self, variables: Sequence[AffineVariable]
    ) -> tuple[dict[str, VariableMap | UnknownsMap], tuple[AffineVariable, ...]]:
        """Return the constant maps to variables, by name, and the variables whose maps depend on hyperparameters."""
        design = self._design() if self.precision is None else self.precision
        maps = {} if design is None else design.variables
        return (
            {v.name: maps[v.name] for v in variables if v.name in maps},
            tuple(v for v in variables if v.name not in maps),
        )

    def _evaluated_moments(
        self, thetas: np.ndarray, variables: tuple[AffineVariable, ...], precomputed: EvaluatedRows
    ) -> list[dict[str, AffineMoments]]:
        """Return the prior moments of affine variables from their graphs, for rows of theta."""
        if not variables:
            return [{} for _ in thetas]
        if self.precision is not None:
            return self._mapped_moments(thetas, variables)
        rows = zip(*self._evaluated_rows(variables, lambda: self._moment_graphs(variables), thetas, precomputed))
        return [{v.name: AffineMoments(*row[3 * i : 3 * i + 3]) for i, v in enumerate(variables)} for row in rows]

    def _mapped_moments(
        self, thetas: np.ndarray, variables: tuple[AffineVariable, ...]
    ) -> list[dict[str, AffineMoments]]:
        """Return the moments of variables whose maps from the unknowns are evaluated at each row of theta."""
        targets = [(v.name, v.expression) for v in variables]
        maps = self._for_solver(("maps", variables), lambda: SparseMaps(self.form, self.function, targets))
        means = self._for_solver(
            ("means", variables),
            lambda: self.function(self.form.hyper_values, [self.form.at_zero_noise(graph) for _, graph in targets]),
        )
        out = []
        for theta in thetas:
            values = self.unpack(theta)
            matrices = maps.at(values, self._noise_sizes())
            if missing := [name for name, _ in targets if name not in matrices]:
                raise UnsupportedModelError(
                    f"{missing[0]!r} depends on very many latent variables in each of its values, which the sparse "
                    f"algebra of this model has no room for: leave it out, and compute it from draws."
                )
            of_theta = zip(targets, means(*values))
            out.append(
                {name: UnknownsMap(matrices[name]).moments(np.asarray(mean), ()) for (name, _), mean in of_theta}
            )
        return out

    def _roots_and_means(self, thetas: np.ndarray) -> tuple[Sequence[np.ndarray], dict[str, np.ndarray]]:
        """Return roots of all blocks and, by name, means of variables with constant maps, at s rows of theta.

        A root is (s, d) for independent noise, else (s, k, d); a mean is (s, *shape).
        """
        constant, _ = self._split_by_map(self.form.affine)
        variables = [v for v in self.form.affine if v.name in constant]
        roots = [] if self.solver.name == "precision" else self._maps.roots

        def graphs() -> list[TensorVariable]:
            return [*roots, *(self.form.at_zero_noise(v.expression) for v in variables)]

        arrays = self._evaluated_rows("roots", graphs, thetas, NOTHING)
        count = len(roots)
        return arrays[:count], {v.name: mean for v, mean in zip(variables, arrays[count:])}

    def _moment_graphs(self, variables: Sequence[AffineVariable]) -> list[TensorVariable]:
        moments = [
            (v.expression, self.solver.cross(self.form, v), self.solver.variance(self.form, v)) for v in variables
        ]
        return [self.form.at_zero_noise(graph) for graphs in moments for graph in graphs]

    def _noise_graphs(self) -> list[TensorVariable]:
        outputs = []
        for block in self.form.blocks:
            outputs += [self.solver.cross(self.form, AffineVariable(block.name, block.noise)), block.covariance]
            if block.factor is not None:
                origin = AffineVariable(block.name, block.origin, block)
                outputs += [block.factor, self.solver.cross(self.form, origin)]
        return [self.form.at_zero_noise(graph) for graph in outputs]

    def _evaluated_rows(
        self,
        name: Hashable,
        graphs: Callable[[], list[TensorVariable]],
        thetas: np.ndarray,
        precomputed: EvaluatedRows,
    ) -> Sequence[np.ndarray]:
        """Return values of graphs at rows of theta, (s, *shape) each, by a function compiled once for each name."""
        if name in precomputed:
            return precomputed[name]
        return self._of_rows(self._for_solver(name, lambda: self._function_of_rows(graphs())), thetas)

    def _function_of_rows(self, graphs: Sequence[TensorVariable]) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        outputs = [batch(graph, rows) if rows else graph[None] for graph in graphs]
        # PyTensor 3.3 has a rewrite of solutions that fails on rows of identities. It is left out, as any that fails,
        # but would print a traceback.
        with compiling(on_opt_error="ignore"):
            return self.function(rows.values(), outputs)

    def _of_rows(self, function: Callable[..., Any], thetas: np.ndarray) -> list[np.ndarray]:
        arrays = map(np.asarray, function(*self.unpack_rows(thetas)))
        return [np.broadcast_to(array, (len(thetas), *array.shape[1:])) for array in arrays]
