"""How far utilities would change if a hyperparameter were integrated over, instead of fixed at its mode."""

from typing import NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.integration.frame import Frame
from pymc_ep.evidence.integration.lattice import lattice
from pymc_ep.models.preferences.engine.values import ComparedUsers
from pymc_ep.models.preferences.evidence import PreferenceEvidence, PreferenceFit
from pymc_ep.models.preferences.posterior import PreferencePosterior

__all__ = ["Neglected", "neglected", "neglected_remark"]

_STEP = 0.5
"""Step of the grid, in unconstrained units: a factor of 1.6 for a scale. Narrower densities do not matter."""
_FALL = 4.0
"""Fall of the log density, in nats, at which the grid ends."""
_REACH, _MOST_FITS = 8.0, 100
"""Largest distance to each side, a factor of 3000 for a scale, and largest number of fits."""
_USERS = 200
"""Largest number of users whose comparisons are examined: the first ones."""
_QUANTILE = 0.9
"""Quantile over comparisons that is reported as `Neglected.widened` and `Neglected.moved`."""
_WIDENED, _MOVED = 1.2, 0.3
"""`Neglected.widened` and `Neglected.moved` above which a note is given; EP's own error is negligible by comparison."""


class Neglected(NamedTuple):
    """Change of compared differences of utilities where a hyperparameter is integrated over, instead of at its mode.

    Attributes
    ----------
    widened : float
        Ratio of the standard deviation, integrated over, to the one at the mode: a tenth of differences exceed it.
    moved : float
        Distance of the two means, in standard deviations at the mode: a tenth of differences exceed it.
    """

    widened: float
    moved: float


def neglected(evidence: PreferenceEvidence, at: PreferenceFit, compared: ComparedUsers) -> dict[str, Neglected]:
    """Return the changes by name, for each scalar hyperparameter with a transform, such as a scale.

    Each of these is integrated over by a grid, while all other hyperparameters, b and V included, keep their mode.
    """
    n = int(compared.comparisons.pair_ends[min(_USERS, len(compared.users))])
    users = np.repeat(compared.users, np.diff(compared.comparisons.pair_ends))[:n]
    firsts, seconds = (compared.comparisons.items[place[:n]] for place in compared.comparisons.places)

    form, explorer = evidence.form, Explorer(evidence.varied(density="unconstrained"))
    mode = explorer.evidence.at(at.theta, at.state)
    first = explorer.record(mode, mode.gradient)

    def differences(point: DesignPoint) -> tuple[np.ndarray, np.ndarray]:
        posterior = PreferencePosterior(form, point.theta, compared, point.kept.users)
        return posterior.differences(users, firsts, seconds)[:2]

    out, (mean, sd) = {}, differences(first)
    places = np.cumsum([0, *(values.size for values in form.unpack(at.theta))])
    for begin, end, name in zip(places, places[1:], form.form.hyper_names):
        if not form.transformed[begin] or end > begin + 1:
            continue
        frame = Frame(at.theta, np.eye(at.theta.size)[begin : begin + 1])
        grid = lattice(
            explorer.node,
            frame,
            (first.value, first),
            step=_STEP,
            fall=_FALL,
            reach=_REACH,
            most=_MOST_FITS,
            halvings=0,
        )
        means, sds = map(np.array, zip(*map(differences, grid.states)))
        # m = sum_k w_k m_k and v = sum_k w_k (s_k^2 + (m_k - m)^2), over the nodes.
        mixed = grid.shares @ means
        spread = np.sqrt(grid.shares @ (sds**2 + (means - mixed) ** 2))
        out[name] = Neglected(
            float(np.quantile(spread / sd, _QUANTILE)), float(np.quantile(np.abs(mixed - mean) / sd, _QUANTILE))
        )
    return out


def neglected_remark(effects: dict[str, Neglected], cure: str) -> str:
    """Return the note on hyperparameters whose spread matters, with a cure; empty where there are none."""
    reported = {name: effect for name, effect in effects.items() if effect.widened > _WIDENED or effect.moved > _MOVED}
    if not reported:
        return ""
    sentences = (
        f"the spread of {name} would widen differences of utilities {effect.widened:.2g} times and move them by "
        f"{effect.moved:.2g} sd"
        for name, effect in reported.items()
    )
    return f"{', '.join(sentences)}: {cure}, or hold {', '.join(reported)} at a known value"
