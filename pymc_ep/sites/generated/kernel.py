"""The generated loop of one site as a function of arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

from pymc_ep.compat import c_mode
from pymc_ep.concurrency import compiled_function, compiled_property
from pymc_ep.modes import bodies_of
from pymc_ep.sites.base import Site
from pymc_ep.sites.generated.op import Rule, TiltedMoments
from pymc_ep.sites.generated.scalar_graph import scalar_density
from pymc_ep.sites.generated.unrolled import NoScalarGraphError

__all__ = ["GeneratedMoments", "missing_body"]


class GeneratedMoments:
    """Moments of many sites of one density, and derivatives of log Z in their parameters.

    Parameters
    ----------
    site : Site
    options : dict
        Static options of the site.
    highest : float
        Largest valid log density; a site where it is exceeded is not accepted.
    mode : PyTensor mode or str, optional
        Mode whose body is compiled. By default this is the C body, or the Numba body where there is no compiler: C
        takes a second to compile, Numba four, and both run as fast.

    Attributes
    ----------
    missing : str
        Reason why the site has no loop, known once compilation was tried; empty if the site has a loop.
    """

    def __init__(self, site: Site, options: dict[str, Any], highest: float, mode: Mode | str | None = None) -> None:
        self._site = site
        self._options = options
        self._mode = mode
        self._rule = Rule(
            analytic=site.analytic,
            log_concave=site.log_concave,
            scanned=site.scanned,
            peaked=site.outermost_peaks is not None,
            highest=highest,
            parameters=len(site.parameters),
            predictors=site.predictors,
        )
        supported = site.log_concave or site.scanned or self._rule.peaked or site.predictors > 1
        self.missing = "" if supported else "a survey of peaks beside knots"

    def __call__(self, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the fields of `op.FIELDS`, the derivatives, and whether each site is accepted; None without a loop.

        Parameters
        ----------
        arrays : sequence of ndarray, (n,) each
            Observations, cavity means and variances, powers, and the parameters.
        """
        if self.missing or self.function is None:
            return None
        if self._site.outermost_peaks is not None:
            arrays = [*arrays, *self._site.outermost_peaks(*arrays)]
        return self.function(np.array(arrays))

    @compiled_property
    def function(self) -> Callable[..., Any] | None:
        """Return the compiled loop, a function of the input of `op.TiltedMoments`; None if it cannot be compiled."""
        bodies = bodies_of(self._mode)
        mode = {"auto": c_mode() if pytensor.config.cxx else "NUMBA", "c": c_mode(), "numba": "NUMBA"}.get(bodies)
        if mode is None:
            self.missing = f"a body for {bodies}"
        if self.missing:
            return None
        try:
            graph = scalar_density(self._site, self._options)
            arguments = pt.matrix(dtype="float64")
            out = TiltedMoments(graph.fixed, graph.density, self._rule)(arguments)
            function = compiled_function([arguments], out, trust_input=True, mode=mode)
            function(np.ones((self._rule.inputs, 1)))
        except NoScalarGraphError as error:
            self.missing = str(error)
        except Exception as error:  # Whatever keeps a loop from being compiled, its site has another route.
            self.missing = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return None if self.missing else function


def missing_body(site: Site, **options: Any) -> str:
    """Return why a site has no generated loop, often the name of an Op; empty if the site has a loop."""
    loop = GeneratedMoments(site, site.options | options, np.inf)
    return loop.missing if loop.function is None else ""
