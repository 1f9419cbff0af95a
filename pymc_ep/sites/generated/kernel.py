"""The generated loop of one site as a function of arrays, compiled when its calls pay for that."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.concurrency import compiled_function, compiling
from pymc_ep.sites.base import Site
from pymc_ep.sites.generated.op import Rule, TiltedMoments
from pymc_ep.sites.generated.scalar_graph import NoScalarGraphError, scalar_density

__all__ = ["GeneratedMoments", "missing_body"]

_COST = {False: 150_000, True: 50_000}
"""Work in sites, of a compiled and of an interpreted density, from which compilation pays."""
_OF_A_CALL = {False: 100, True: 600}
"""Work of a call beside that of its sites, in sites."""


class GeneratedMoments:
    """Moments of many sites of one density, with derivatives of log Z in the parameters if `of_parameters`.

    Attributes
    ----------
    missing : str
        What has no body in the loop, once compilation was tried; empty if nothing is missing.
    """

    def __init__(self, site: Site, options: dict[str, Any], highest: float, of_parameters: bool) -> None:
        self._site = site
        self._options = options
        self._highest = highest
        self._of_parameters = of_parameters
        self._work = 0
        self._function: Callable[..., Any] | None = None
        self.missing = ""
        if not (site.log_concave or site.scanned):
            self.missing = "a survey of peaks, as the site has knots and is not log-concave"

    def __call__(self, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the fields of `op.FIELDS`, the derivatives, and whether each site is accepted; None if not compiled.

        Parameters
        ----------
        arrays : sequence of ndarray, (n,) each
            Observations, cavity means and variances, powers, and the parameters.
        """
        if self._function is None:
            kind = self._site.interpreted
            self._work += len(arrays[0]) + _OF_A_CALL[kind]
            if self.missing or self._work < _COST[kind]:
                return None
            self.compile()
            if self.missing:
                return None
        y, mean, variance, power, *parameters = arrays
        values = np.empty((len(parameters), len(y)))
        for row, value in zip(values, parameters):
            row[:] = value
        assert self._function is not None, "compiled above"
        return self._function(y, mean, variance, power, values)

    def compile(self) -> None:
        """Compile the loop, or say in `missing` what prevents it."""
        from pymc_ep.sites.generated.printer_numba import NoBodyError

        with compiling():
            if self._function is not None or self.missing:
                return
            site = self._site
            try:
                graph = scalar_density(site, self._options, self._of_parameters)
                rule = Rule(
                    analytic=site.analytic,
                    log_concave=site.log_concave,
                    scanned=site.scanned,
                    highest=self._highest,
                    parameters=len(site.parameters) if self._of_parameters else 0,
                )
                inputs = [pt.vector(dtype="float64") for _ in range(4)] + [pt.matrix(dtype="float64")]
                out = TiltedMoments(graph.fixed, graph.density, rule)(*inputs)
                self._function = compiled_function(inputs, out, trust_input=True, mode="NUMBA")
            except (NoScalarGraphError, NoBodyError) as error:
                self.missing = str(error)


def missing_body(site: Site, options: dict[str, Any] | None = None) -> str:
    """Return the Op because of which a site has no generated loop; empty if it has one."""
    loop = GeneratedMoments(site, site.options | (options or {}), np.inf, of_parameters=False)
    loop.compile()
    return loop.missing
