"""Registries of forms and methods: how models are recognised as forms, and which methods fit each form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import RLock
from typing import Any, Protocol, TypeVar

import numpy as np
import pymc as pm
import xarray as xr
from pymc import Model

from pymc_ep.compat import Container
from pymc_ep.contracts.form import CompiledForm, Form
from pymc_ep.contracts.method import TREATMENTS, Method
from pymc_ep.contracts.posterior import Posterior
from pymc_ep.exceptions import UnsupportedModelError, did_you_mean, require_instance

__all__ = [
    "FormEntry",
    "Predictions",
    "able_methods",
    "entry_of",
    "forms",
    "get_method",
    "methods",
    "recognise",
    "register_form",
    "register_method",
    "register_verb",
    "solved_by",
]

Recogniser = Callable[[Model, Sequence[str] | None, Sequence[str]], Form | None]
"""``recogniser(model, latent, wanted)``; see `FormEntry`."""
Verb = Callable[..., Any]
"""``verb(idata, model, **arguments)``; see `FormEntry`."""
Row = tuple[str, str, str, Any]
"""Distribution, link and site by name, then the argument of `Method.takes`."""


Rows = Callable[[str], np.ndarray | None]
"""``rows(name)``; see `pymc_ep.contracts.Call.start_rows`."""
OwnPosterior = TypeVar("OwnPosterior", bound=Posterior)
"""Type of the posterior of a form."""
OwnForm = TypeVar("OwnForm", bound=Form, contravariant=True)
"""Type of the form."""


class Predictions(Protocol[OwnPosterior, OwnForm]):
    """Predictions and diagnostics of a form whose predictors are not Gaussian."""

    def rebuild(self, idata: Container, model: pm.Model) -> OwnPosterior:
        """Return the posterior of a fit, see `pymc_ep.contracts.Posterior`.

        Its attribute ``unknowns`` is the number of coefficients and hyperparameters.

        Raises
        ------
        ValueError
            Where the fit is not of the model in its current state.
        """

    def log_predictive(self, model: pm.Model, posterior: OwnPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Return log predictive densities of new observations, for `pymc_ep.log_predictive`."""

    def transforms(self, model: pm.Model, posterior: OwnPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Return probability integral transforms of new observations, for `pymc_ep.diagnostics.predictive_pit`."""

    def no_cumulants(self, form: OwnForm) -> str:
        """Return the reason why `pymc_ep.diagnose` has no cumulants of tilted distributions."""

    def remark(self, form: OwnForm) -> str:
        """Return the reason why there are no Gaussian predictions, and the alternative."""


@dataclass(frozen=True)
class FormEntry:
    """Entry of a form in the registry.

    Attributes
    ----------
    form : type
        A frozen dataclass, see `pymc_ep.contracts.Form`.
    compiled : callable
        ``compiled(form, initial hyperparameters, compile_kwargs)`` returns the compiled functions, see
        `pymc_ep.contracts.CompiledForm`.
    recogniser : callable, optional
        ``recogniser(model, latent, wanted)`` returns the form. It returns None for a model of another form, and raises
        `UnsupportedModelError` for one that misses a condition of this form. Later registrations are tried first.
        None for a form that the recogniser of another form returns.
    ops : tuple of type
        Types of Ops of random variables. If given, the recogniser is only called for models with such a variable.
    fallback : bool
        Whether the recogniser is tried after all others; it then raises for models of no form.
    rows : callable
        Returns rows of the table of `pymc_ep.supported`: distribution, link, name of the site, site.
    gaussian : bool
        Whether the form is a `pymc_ep.contracts.SiteForm`, to which the general predictions and diagnostics apply.
    predictions : Predictions, optional
        Predictions and diagnostics of any other form; None where it has none.
    verbs : mapping of str to callable
        Functions of results of the form beyond predictions, by name: ``verb(idata, model, **arguments)``, which
        `pymc_ep.predict.call_verb` calls. `pymc_ep.tables.row_verbs` makes ``recommend``, ``rank_items``, ``similar``
        and ``fold_in`` of the predictions of two matrices of rows. `register_verb` adds one later.
    extended : callable, optional
        ``extended(compiled form, theta, values, rows)`` returns the hyperparameters, by name, of a model whose rows may
        differ from an earlier fit's. `values` are the fit's hyperparameters, by name. theta, (p,), has their values for
        hyperparameters without rows, and ``rows(name)`` is `pymc_ep.contracts.Call.start_rows`. None where
        hyperparameters have the same shapes in all models of the form.
    current : callable
        ``current(compiled form)`` returns whether the form still holds for the present lengths of data. If not, the
        model is recognised again.
    """

    form: type
    compiled: Callable[..., CompiledForm]
    recogniser: Recogniser | None = None
    ops: tuple[type, ...] = ()
    fallback: bool = False
    rows: Callable[[], Sequence[Row]] = lambda: ()
    gaussian: bool = False
    predictions: Predictions[Any, Any] | None = None
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    extended: Callable[[Any, np.ndarray, dict[str, np.ndarray], Rows], dict[str, np.ndarray]] | None = None
    current: Callable[[Any], bool] = lambda compiled: True


_FORMS: dict[type, FormEntry] = {}
"""Registered forms by type, in the order of registration."""
_METHODS: dict[tuple[str, type], Method] = {}
"""Registered methods by name and type of form, in the order of registration."""
_BUILT_IN = [module.name for module in iter_modules([str(Path(__file__).parents[1] / "models")]) if module.ispkg]
"""Subpackages of `pymc_ep.models` that are not imported yet. They hold most of the package, and are imported at the
first look-up or registration."""
_IMPORTING = RLock()
_OF_ALL = ("predict", "log_predictive", "diagnose", "loo", "loo_pit", "start_point")
"""Names that no verb of a form may have, since results of all forms offer functions of these names."""


def _import_built_in() -> None:
    """Import the forms of this package, which register themselves before the forms of other packages."""
    with _IMPORTING:
        left = _BUILT_IN.copy()
        _BUILT_IN.clear()  # they call this function in turn
        try:
            while left:
                import_module(f"pymc_ep.models.{left[0]}.registration")
                del left[0]
        finally:
            _BUILT_IN.extend(left)  # after an interrupt


def register_form(entry: FormEntry) -> FormEntry:
    """Register a form with its recogniser and its compiled functions.

    Parameters
    ----------
    entry : pymc_ep.forms.FormEntry

    Raises
    ------
    TypeError
        For anything but an entry, and for a form that is no class.
    ValueError
        Where the form is registered already.
    """
    require_instance("The argument of register_form", entry, FormEntry, "give pymc_ep.forms.FormEntry(form, ...)")
    require_instance("The form of the entry", entry.form, type, "give the class of the forms, not one of them")
    for name, verb in entry.verbs.items():
        _check_verb(name, verb)
    _import_built_in()
    if entry.form in _FORMS:
        raise ValueError(f"A form {entry.form.__name__} is registered already.")
    _FORMS[entry.form] = entry
    return entry


def register_verb(form: type, name: str, verb: Verb) -> None:
    """Add a function of the results of a form.

    Parameters
    ----------
    form : type
        Class of a registered form.
    name : str
    verb : callable
        See `FormEntry`.

    Raises
    ------
    TypeError
        For a verb that is no function, and for a name that is no string.
    ValueError
        Where the form is not registered, and where the name is taken or is not allowed.
    """
    _check_verb(name, verb)
    _import_built_in()
    if form not in _FORMS:
        raise ValueError(f"There is no form {getattr(form, '__name__', form)!r}: call register_form for it first.")
    entry = _FORMS[form]
    if name in entry.verbs:
        raise ValueError(f"A verb {name!r} for {form.__name__} is registered already; choose another name.")
    _FORMS[form] = replace(entry, verbs={**entry.verbs, name: verb})


def _check_verb(name: str, verb: Verb) -> None:
    """Raise for a name that no verb may have, and for a verb that is no function."""
    require_instance("The name of a verb", name, str, "it is the first argument of pymc_ep.predict.call_verb")
    if not name.isidentifier() or name in _OF_ALL:
        taken = "what all results offer" if name in _OF_ALL else "no name of a function"
        raise ValueError(f"A verb cannot be called {name!r}, which is {taken}; choose another name.")
    if not callable(verb):
        raise TypeError(f"The verb {name!r} is a {type(verb).__name__}; give a function of idata, model and arguments.")


def register_method(method: Method) -> Method:
    """Register a method for a form, under its value of the argument ``method``.

    Parameters
    ----------
    method : pymc_ep.contracts.Method

    Raises
    ------
    TypeError
        For anything but a method, and for fields of other types.
    ValueError
        Where the form has a method of that name already, or a treatment of hyperparameters is unknown or lacks its
        functions.
    """
    require_instance("The argument of register_method", method, Method, "give pymc_ep.contracts.Method(name, ...)")
    require_instance("The name of the method", method.name, str, "it is the value of method= in fit()")
    require_instance(f"The form of {method.name!r}", method.form, type, "give the class of the forms, not one of them")
    require_instance(f"The hyper of {method.name!r}", method.hyper, tuple, f"give some of {TREATMENTS}")
    if not method.hyper or not set(method.hyper).issubset(TREATMENTS):
        raise ValueError(f"The hyper of {method.name!r} is {method.hyper}; give some of {TREATMENTS}.")
    if "sample" in method.hyper and (method.evidence_op is None or method.condition is None):
        raise ValueError(f"The hyper of {method.name!r} has 'sample', which needs evidence_op= and condition=.")
    _import_built_in()
    key = (method.name, method.form)
    if key in _METHODS:
        raise ValueError(f"A method {method.name!r} for {method.form.__name__} is registered already.")
    _METHODS[key] = method
    return method


def forms() -> tuple[FormEntry, ...]:
    """Return all registered forms."""
    _import_built_in()
    return tuple(_FORMS.values())


def methods() -> tuple[Method, ...]:
    """Return all registered methods."""
    _import_built_in()
    return tuple(_METHODS.values())


def solved_by(name: str) -> list[FormEntry]:
    """Return the entries of the forms that have a method of that name."""
    return [entry for entry in forms() if (name, entry.form) in _METHODS]


def entry_of(form: Form) -> FormEntry:
    """Return the registry entry of a form.

    Raises
    ------
    UnsupportedModelError
        Where its type is not registered.
    """
    _import_built_in()
    if type(form) not in _FORMS:
        raise UnsupportedModelError(
            f"The recogniser returned a {type(form).__name__}, which is not registered: call register_form for it."
        )
    return _FORMS[type(form)]


def recognise(model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()) -> Form:
    """Return the form of a model, from the first recogniser that accepts it."""
    latest_first = reversed(forms())
    for entry in sorted(latest_first, key=lambda entry: entry.fallback):
        if entry.recogniser is None or (entry.ops and not _has_any(model, entry.ops)):
            continue
        if (form := entry.recogniser(model, latent, wanted)) is not None:
            return form
    raise UnsupportedModelError("No registered form fits the model; pymc_ep.supported() lists them.")


def _has_any(model: Model, ops: tuple[type, ...]) -> bool:
    return any(isinstance(rv.owner.op, ops) for rv in model.basic_RVs)


def get_method(name: str | None, form: Form) -> Method:
    """Return the method of that name for a form; without a name the first of `able_methods`.

    Raises
    ------
    ValueError
        Where there is no such method; lists the form's methods.
    UnsupportedModelError
        Where the form has no method.
    """
    kind = type(form)
    fitting = [method for method in methods() if method.form is kind]
    if not fitting:
        raise UnsupportedModelError(
            f"The model is of the form {kind.__name__}, for which no method is registered; register_method adds one."
        )
    if name is None:
        # Where no method supports all sites, the first raises and names what it lacks.
        return (able_methods(form) or fitting)[0]
    for method in fitting:
        if name == method.name:
            return method
    names = ", ".join(repr(method.name) for method in able_methods(form) or fitting)
    raise ValueError(
        f"method={name!r} does not exist for this model ({kind.__name__}); use one of: {names}."
        f"{did_you_mean(name, (method.name for method in fitting))}"
    )


def able_methods(form: Form) -> list[Method]:
    """Return the methods that support a form and all of its sites; methods that prefer these sites come first."""
    sites = [factor.site for factor in form.factors]
    fitting = [method for method in methods() if method.form is type(form)]
    able = [method for method in fitting if all(map(method.takes, sites)) and method.takes_form(form)]
    return sorted(able, key=lambda method: not all(map(method.suits, sites)))
