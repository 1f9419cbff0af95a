"""What an engine is, how it ends, and the registry of engines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_ep.exceptions import UnsupportedModelError, did_you_mean
from pymc_ep.sites.base import Site

__all__ = [
    "Engine",
    "EngineEntry",
    "Status",
    "able_engines",
    "check_flag",
    "check_whole",
    "engines",
    "get_engine",
    "register_engine",
]


class Status(NamedTuple):
    """How an iteration ended.

    Attributes
    ----------
    converged : bool
    sentence : str
        For people, kept in the result.
    interrupted : bool
        Whether the user ended it.
    """

    converged: bool
    sentence: str
    interrupted: bool = False


class Engine(Protocol):
    """One algorithm. Problems and states are NamedTuples of arrays."""

    def init(self, problem: Any, start: Any = None) -> Any:
        """Return the first state, from an earlier state's arrays where given."""

    def step(self, problem: Any, state: Any) -> Any:
        """Return the next state: a pure function of arrays."""

    def objective(self, state: Any) -> float:
        """Return the quantity that is reported for each iteration, such as log Z."""

    def change(self, state: Any) -> float:
        """Return the size of the last change, as the stopping test takes it."""

    def finished(self, state: Any) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""


_FINE = Status(True, "")


@dataclass(frozen=True)
class EngineEntry:
    """An engine in the registry.

    Attributes
    ----------
    name : str
        What `pymc_ep.fit` calls ``method``.
    form : type
        The form it solves.
    solve : callable
        ``solve(compiled form, hyper=, theta=, start=, options=, report=, checkpoint=) -> Solution``.
    rebuild : callable
        ``rebuild(compiled form, state) -> posterior``: from the arrays of a saved state.
    options : dict
        Options it takes beyond those of `pymc_ep.fit`, with their defaults.
    hyper : tuple of str
        Treatments of hyperparameters it offers; ``"sample"`` needs the two below.
    evidence_op : callable, optional
        ``evidence_op(compiled form, options) -> Op`` with outputs log evidence and gradient, and a method
        ``endless_directions(theta)`` that names where the posterior of the hyperparameters is improper.
    condition : callable, optional
        ``condition(compiled form, thetas=, options=, report=) -> Solution``: given draws of the hyperparameters.
    takes : callable
        Whether it can work with a site, None standing for the quadrature of a density; by default it can with any.
    suits : callable
        Whether it is to be taken for such a site where no method is asked for and another would do.
    takes_form : callable
        Whether it can work with a form, its sites aside; by default it can with any.
    choose_hyper : callable
        ``choose_hyper(compiled form, options, chains=) -> (str, Status)``: the treatment that ``hyper="auto"`` stands
        for, and why that is not the best one. It may be ``"sample"`` only if `chains` is true.
    """

    name: str
    form: type
    solve: Callable[..., Any]
    rebuild: Callable[..., Any]
    options: dict[str, Any]
    hyper: tuple[str, ...]
    evidence_op: Callable[..., Any] | None = None
    condition: Callable[..., Any] | None = None
    takes: Callable[[Site | None], bool] = lambda site: True
    suits: Callable[[Site | None], bool] = lambda site: True
    takes_form: Callable[[Any], bool] = lambda form: True
    choose_hyper: Callable[..., tuple[str, Status]] = lambda form, options, *, chains: ("optimize", _FINE)


_ENGINES: dict[tuple[str, type], EngineEntry] = {}


def register_engine(entry: EngineEntry) -> EngineEntry:
    """Register an engine for a form under the name users give as ``method``."""
    key = (entry.name, entry.form)
    if key in _ENGINES:
        raise ValueError(f"An engine {entry.name!r} for {entry.form.__name__} is registered already.")
    _ENGINES[key] = entry
    return entry


def engines() -> tuple[EngineEntry, ...]:
    """Return all registered engines."""
    return tuple(_ENGINES.values())


def get_engine(name: str | None, form: Any) -> EngineEntry:
    """Return the engine of that name for a form; for None the first of those that can work with all of its sites.

    Raises
    ------
    ValueError
        Lists the methods there are for the form.
    UnsupportedModelError
        Where there are none.
    """
    kind = type(form)
    fitting = [e for e in _ENGINES.values() if e.form is kind]
    if not fitting:
        raise UnsupportedModelError(
            f"The model is of the form {kind.__name__}, for which no method is registered; register_engine adds one."
        )
    if name is None:
        # Where none can, the first says what it lacks.
        return (able_engines(form) or fitting)[0]
    for entry in fitting:
        if name == entry.name:
            return entry
    names = ", ".join(repr(e.name) for e in able_engines(form) or fitting)
    raise ValueError(
        f"method={name!r} does not exist for this model ({kind.__name__}); use one of: {names}."
        f"{did_you_mean(name, (e.name for e in fitting))}"
    )


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise unless an option is a whole number that is not too small."""
    if isinstance(value, bool) or not (isinstance(value, int | np.integer) and value >= least):
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless an option is true or false; a word such as "no" would be true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False.")


def able_engines(form: Any) -> list[EngineEntry]:
    """Return the engines for a form that can work with all of its sites, those first that suit them."""
    kind, sites = type(form), [group.site for group in form.factors]
    able = [e for e in _ENGINES.values() if e.form is kind and all(map(e.takes, sites)) and e.takes_form(form)]
    return sorted(able, key=lambda e: not all(map(e.suits, sites)))
