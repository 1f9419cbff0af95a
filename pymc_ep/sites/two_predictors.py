"""Sites of two predictors: a likelihood whose location and scale, mean and dispersion, or mean and share of zeros vary.

A site t(eta_1, eta_2) is a site of its first predictor with parameters that are functions of the second. Its tilted
moments are sums over a lattice of nodes, see `pymc_ep.sites.generated.body_of_two`. Where the lattice is not accurate
enough they are by nested quadrature. Engines represent the site by three rows, see `pymc_ep.sites.rows_of_two`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

from pymc_ep.concurrency import compiled_property
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Site, Tilted
from pymc_ep.sites.compiled import COMPILED, CompiledSite, compile_site
from pymc_ep.sites.generated.kernel import GeneratedMoments
from pymc_ep.sites.generated.op import FIELDS_OF_TWO
from pymc_ep.sites.nested_moments import NestedMoments
from pymc_ep.sites.rows_of_many import number_of_rows
from pymc_ep.sites.rows_of_two import ROWS, covariance_of, covariance_rows, precision_rows, sum_rows

__all__ = ["CompiledJointSite", "CompiledTwoPredictorSite", "TwoPredictorSite", "two_predictor_site"]


@dataclass(frozen=True, kw_only=True)
class TwoPredictorSite(Site):
    """Site of two predictors.

    Attributes
    ----------
    inner : Site
        Site of the first predictor.
    arguments : callable
        ``arguments(eta_2, *parameters)``: the parameters of `inner`, as PyTensor graphs.
    """

    inner: Site
    arguments: Callable[..., Sequence[Any]]

    @property
    def predictors(self) -> int:
        """Number of predictors of an observation: two."""
        return 2


def two_predictor_site(
    inner: Site, arguments: Callable[..., Sequence[Any]], parameters: tuple[str, ...]
) -> TwoPredictorSite:
    """Return the site of two predictors from a site of the first one, `inner`; see `TwoPredictorSite`."""

    def logp(y: Any, eta: Any, second: Any, *values: Any, **options: Any) -> Any:
        return inner.logp(y, eta, *arguments(second, *values), **options)

    return TwoPredictorSite(
        name=f"{inner.name} of two predictors",
        parameters=parameters,
        domain=inner.domain,
        log_concave=False,
        logp=logp,
        parameter_domains=("extended real",) * len(parameters),
        holds_observations=inner.holds_observations,
        interpreted=True,
        options=inner.options,
        inner=inner,
        arguments=arguments,
    )


class CompiledJointSite(CompiledSite):
    """Functions of arrays of a site of several predictors: NumPy arrays alone, as there is no quadrature in JAX."""

    def __init__(self, site: Site, mode: Mode | str | None, loop: bool, options: dict[str, Any]) -> None:
        super().__init__(site, mode, loop, options)
        if self._jax:
            raise UnsupportedModelError(
                f"The likelihood {site.name} runs on the host, as its quadrature has no body of JAX; leave out device= "
                f"and compile_kwargs={{'mode': 'JAX'}}."
            )

    def moments_and_nearby(
        self, y: Array, mean: Array, variance: Array, power: float, *parameters: Array
    ) -> tuple[Tilted, Callable[[Array], Tilted]]:
        """Return the moments, and a function of new cavity means that returns the moments there."""

        def at(centre: Array) -> Tilted:
            return self.moments(y, centre, variance, power, *parameters)

        return at(mean), at

    def rule_errors(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> np.ndarray:
        """Return the quadrature error of the tilted means, (n,), in cavity standard deviations; zero if negligible.

        For arguments see `moments`.
        """
        return np.zeros(len(y) // number_of_rows(self.site.predictors))

    def third_moments(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> np.ndarray:
        """Return the third central moments 111, 112, 122 and 222 of the tilted densities of two predictors, (4, n)."""
        raise NotImplementedError


class CompiledTwoPredictorSite(CompiledJointSite):
    """Functions of arrays of a `TwoPredictorSite`.

    For n observations, arguments of the moments are (3 n,), with observations and parameters repeated for each of the
    three rows. Results are (3 n,) as well: log Z is in the first row, zero in the others.
    """

    site: TwoPredictorSite

    def __init__(self, site: TwoPredictorSite, mode: Mode | str | None, loop: bool, options: dict[str, Any]) -> None:
        super().__init__(site, mode, loop, options)
        self._inner = COMPILED[type(site.inner)](site.inner, mode, True, options)
        # Far from where the density has mass it may overflow.
        self._inner.requires_support = False
        self._nested = NestedMoments(self._inner, self._inner_arguments)
        self._lattice = GeneratedMoments(site, options, self._highest, mode)
        names = ("second predictor", *site.parameters)
        density = Site(
            name=site.name,
            parameters=names,
            domain=site.domain,
            log_concave=False,
            logp=site.logp,
            interpreted=True,
            options=options,
        )
        self._of_first = compile_site(density, mode)

    def moments(self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array) -> Tilted:
        """Return the tilted moments of the rows, fields (3 n,)."""
        y, mean, variance, *values = (np.asarray(a, dtype=float) for a in (y, mean, variance, *parameters))
        n = len(y) // ROWS
        fields, rest, *_ = self._by_lattice(y, mean, variance, power, values)
        for places, cavity, *_, nodes in self._nested.pieces(y, mean, variance, power, values, rest):
            for field, value in zip(fields, self._nested.moments(nodes, cavity)):
                field.reshape(ROWS, n)[:, places] = value.reshape(ROWS, -1)
        return Tilted(*fields)

    def _by_lattice(
        self,
        y: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        power: Array,
        parameters: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the results of the lattice for n sites, and which sites it does not give.

        These are the moments by rows, (5, 3 n), the indices of sites that are not accepted, the derivatives of log Z in
        the k parameters, (k, n), and the third central moments 111, 112, 122 and 222, (4, n).
        """
        n = len(y) // ROWS
        fields, slopes = np.zeros((len(Tilted._fields), len(y))), np.zeros((len(parameters), n))
        m_1, m_2, _ = mean.reshape(ROWS, n)
        arguments = [y[:n], m_1, m_2, *covariance_of(variance), np.broadcast_to(power, n)]
        generated = self._lattice([*arguments, *(value[:n] for value in parameters)])
        if generated is None:
            return fields, np.arange(n), slopes, np.zeros((4, n))
        at = dict(zip(FIELDS_OF_TWO, generated))
        none = np.zeros(n)
        fields[:] = (
            np.concatenate([at["log_z"], none, none]),
            sum_rows(at["mean_1"], at["mean_2"]),
            covariance_rows(at["variance_1"], at["variance_2"], at["covariance"]),
            np.concatenate([at["gradient_1"], at["gradient_2"], none]),
            precision_rows(at["precision_11"], at["precision_22"], at["precision_12"]),
        )
        first = len(FIELDS_OF_TWO)
        return fields, np.flatnonzero(generated[-1] == 0), generated[first:-1], generated[first - 4 : first]

    def parameter_gradient(
        self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array
    ) -> tuple[Array, ...]:
        """Return the derivative of log Z in each parameter at a fixed cavity, (n,) each."""
        if not self.site.parameters:
            return ()
        y, mean, variance, *values = (np.asarray(a, dtype=float) for a in (y, mean, variance, *parameters))
        _, rest, out, _ = self._by_lattice(y, mean, variance, power, values)
        for places, cavity, observed, piece_values, nodes in self._nested.pieces(
            y, mean, variance, power, values, rest
        ):
            second, centre = cavity.at(nodes.z)
            inner = self._inner_arguments(second, piece_values)
            # d log Z / d theta = sum_k share_k sum_i (d log Z_1 / d argument_i) (d argument_i / d theta) over nodes k.
            slopes = self._inner.parameter_gradient(
                np.broadcast_to(observed, centre.shape),
                centre,
                np.broadcast_to(cavity.first**2, centre.shape),
                power,
                *inner,
            )
            # Nodes without weight may have no finite slope.
            weighted = [np.where(nodes.share > 0, nodes.share * slope, 0.0) for slope in slopes]
            repeated = [np.broadcast_to(value, second.shape) for value in piece_values]
            gradients = self._arguments_pullback(*map(np.ravel, (second, *repeated, *weighted)))
            for total, value in zip(out, gradients):
                total[places] = np.asarray(value).reshape(second.shape).sum(axis=0)
        return tuple(out)

    def third_moments(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> np.ndarray:
        """Return the third central moments 111, 112, 122 and 222 of the tilted densities, (4, n)."""
        y, mean, variance, *values = (np.asarray(a, dtype=float) for a in (y, mean, variance, *parameters))
        _, rest, _, out = self._by_lattice(y, mean, variance, 1.0, values)
        for places, cavity, observed, piece_values, nodes in self._nested.pieces(y, mean, variance, 1.0, values, rest):
            out[:, places] = self._nested.third_moments(nodes, cavity, observed, piece_values)
        return out

    def log_density(self, y: Array, eta: Array, *parameters: Array) -> Array:
        """Return log t(eta_1, eta_2; y, parameters); the first of the parameters is eta_2."""
        return self._of_first.log_density(y, eta, *parameters)

    def given_second(self, second: np.ndarray, values: Sequence[np.ndarray]) -> tuple[CompiledSite, list[np.ndarray]]:
        """Return the site of the first predictor, and its parameters, (k, n) each, given eta_2, (k, n)."""
        return self._inner, self._inner_arguments(second, values)

    def _inner_arguments(self, second: np.ndarray, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the parameters of the inner site, (k, n) each, at eta_2, (k, n)."""
        if not self.site.inner.parameters:
            return []
        repeated = [np.broadcast_to(value, second.shape) for value in values]
        with np.errstate(all="ignore"):
            arguments = self._arguments_function(*map(np.ravel, (second, *repeated)))
        return [np.asarray(argument).reshape(second.shape) for argument in arguments]

    def _arguments_graph(self) -> tuple[list[Any], list[Any]]:
        inputs = self._vectors("second")
        return inputs, [pt.broadcast_to(a, inputs[0].shape) for a in self.site.arguments(*inputs)]

    @compiled_property
    def _arguments_function(self) -> Callable[..., Sequence[Any]]:
        inputs, outputs = self._arguments_graph()
        return self._function(inputs, outputs)

    @compiled_property
    def _arguments_pullback(self) -> Callable[..., Sequence[Any]]:
        """``(eta_2, *parameters, *cotangents) -> derivative in each parameter``, vectors."""
        inputs, outputs = self._arguments_graph()
        cotangents = [pt.vector(dtype="float64") for _ in outputs]
        total = sum((c * out).sum() for c, out in zip(cotangents, outputs))
        gradient = pytensor.grad(total, inputs[1:], disconnected_inputs="ignore")
        return self._function([*inputs, *cotangents], gradient)


COMPILED[TwoPredictorSite] = CompiledTwoPredictorSite
