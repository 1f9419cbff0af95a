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

_PAYS = {False: 1_000_000, True: 400_000}
"""Work after which compilation, two to four seconds, has paid, counted in sites: of a density that is compiled, of
which each takes a microsecond or two, and of one that NumPy runs, of which each takes some ten."""
_OF_A_CALL = {False: 100, True: 600}
"""Work of a call beside that of its sites."""
_TO_LOAD = 20
"""Part of that work after which a loop is loaded that another process has compiled, in a fifth of a second."""


class GeneratedMoments:
    """Moments of many sites of one density, with derivatives of log Z in the parameters if `of_parameters`.

    Parameters
    ----------
    site : Site
    options : dict
        Its static options.
    highest : float
        Largest log density that is believed.
    of_parameters : bool

    Attributes
    ----------
    missing : str
        What has no body in the loop, as far as was tried; empty if nothing is missing.
    """

    def __init__(self, site: Site, options: dict[str, Any], highest: float, of_parameters: bool) -> None:
        self._site = site
        self._options = options
        self._rule = Rule(
            analytic=site.analytic,
            log_concave=site.log_concave,
            scanned=site.scanned,
            highest=highest,
            parameters=len(site.parameters) if of_parameters else 0,
        )
        self._work = 0
        self._op: TiltedMoments | None = None
        self._function: Callable[..., Any] | None = None
        self.missing = "" if site.log_concave or site.scanned else "a survey of peaks beside knots"

    def __call__(self, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the fields of `op.FIELDS`, the derivatives, and whether each site is accepted; None if not compiled.

        Parameters
        ----------
        arrays : sequence of ndarray, (n,) each
            Observations, cavity means and variances, powers, and the parameters.
        """
        if self._function is None:
            if self.missing:
                return None
            self._count(len(arrays[0]))
            if self._function is None:
                return None
        return self._function(np.array(arrays))

    def _count(self, sites: int) -> None:
        """Count a call, and compile or load the loop if it is time."""
        kind = self._site.interpreted
        self._work += sites + _OF_A_CALL[kind]
        if self._work >= _PAYS[kind]:
            self.compile()
        elif self._op is None and self._work >= _PAYS[kind] // _TO_LOAD:
            self.compile(only_if_on_disk=True)

    def compile(self, only_if_on_disk: bool = False) -> None:
        """Compile the loop, or say in `missing` what prevents it."""
        # Numba and the bodies are imported by those who compile.
        from pymc_ep.sites.generated.numba import is_on_disk, note_on_disk
        from pymc_ep.sites.generated.printer_numba import NoBodyError

        with compiling():
            if self._function is not None or self.missing:
                return
            try:
                if self._op is None:
                    graph = scalar_density(self._site, self._options, of_parameters=self._rule.parameters > 0)
                    self._op = TiltedMoments(graph.fixed, graph.density, self._rule)
                if only_if_on_disk and not is_on_disk(self._op):
                    return
                arguments = pt.matrix(dtype="float64")
                function = compiled_function([arguments], self._op(arguments), trust_input=True, mode="NUMBA")
                function(np.ones((4 + len(self._site.parameters), 1)))
                note_on_disk(self._op)
                self._function = function
            except (NoScalarGraphError, NoBodyError) as error:
                self.missing = str(error)
            except Exception as error:  # Whatever keeps a loop from being compiled, its site has another route.
                self.missing = f"{type(error).__name__}: {error}"


def missing_body(site: Site, **options: Any) -> str:
    """Return the name of the Op because of which a site has no generated loop; empty if it has one."""
    loop = GeneratedMoments(site, site.options | options, np.inf, of_parameters=False)
    loop.compile()
    return loop.missing
