"""Microseconds of processor time a site that its tilted moments take, by the generated loop and by nodes.

    python -m docs.benchmarks.site_moments

Cavity variances are log-uniform from 0.05 to 2, means standard normal, powers one. Medians of seven calls on one
thread. About two minutes, compilation included. Writes a section of docs/benchmarks/ep_speed.md.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.sites import Site, compile_site, get_site
from pymc_ep.sites.compiled import CompiledSite

SIZES = (100, 10_000)
TEXT = """Microseconds of processor time that the tilted moments of a site take, medians of seven calls on one thread,
by the compiled loop with the sites that it does not accept, and by rules of nodes alone.
"""


def censored_weibull(y: pt.TensorVariable, eta: pt.TensorVariable, shape: pt.TensorVariable) -> pt.TensorVariable:
    """Return the log density of Weibull times, censored at 2.5."""
    return pm.logp(pm.Censored.dist(pm.Weibull.dist(shape, pt.exp(eta)), lower=None, upper=2.5), y)


NAMES = ("logit", "poisson", "ordered_logit", "negative_binomial", "softplus_poisson", "student_t")
SITES = {name: get_site(name) for name in NAMES}
SITES["censored Weibull"] = Site(
    "censored Weibull", ("shape",), "real", log_concave=False, logp=censored_weibull, interpreted=True
)


def arguments(name: str, n: int) -> list[np.ndarray]:
    """Draw observations, cavities, powers and parameters."""
    rng = np.random.default_rng(1)
    domain = SITES[name].domain
    y = {"binary": rng.integers(0, 2, n), "count": rng.poisson(3, n), "ordinal": np.ones(n)}.get(domain)
    y = np.minimum(rng.gamma(2.0, size=n), 2.5) if y is None else y
    parameters = [rng.uniform(0.5, 4, n) for _ in SITES[name].parameters]
    if domain == "ordinal":
        parameters[0] = -parameters[0]
    variance = np.exp(rng.uniform(np.log(0.05), np.log(2.0), n))
    return [np.asarray(y, dtype=float), rng.normal(size=n), variance, np.ones(n), *parameters]


def by_nodes(compiled: CompiledSite, arrays: list[np.ndarray]) -> object:
    """Return the moments without the generated loop."""
    return compiled._by_nodes(arrays, lambda _, rule: compiled._summed(rule))


def microseconds(call: Callable[[], object], n: int) -> float:
    """Return the median processor time a site."""
    call()
    times = []
    for _ in range(7):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return 1e6 * float(np.median(times)) / n


def main() -> None:
    """Measure, write and print."""
    rows = []
    for name, site in SITES.items():
        compiled, row = compile_site(site, loop=True), [name]
        for n in SIZES:
            arrays = arguments(name, n)
            accepted = float(compiled._loop(arrays)[-1].mean())
            loop = microseconds(partial(compiled.moments, *arrays), n)
            nodes = microseconds(partial(by_nodes, compiled, arrays), n)
            row += [f"{nodes:.2f}", f"{loop:.2f}", f"{accepted:.1%}"]
        rows.append(row)
    heads = [f"{what}, n = {n}" for n in SIZES for what in ("nodes", "loop", "accepted")]
    table = markdown_table(["site", *heads], rows)
    print(write_page("site_moments", [header("Tilted moments", __file__), TEXT, table]))


if __name__ == "__main__":
    main()
