"""The registry of forms: which recogniser reads a model as which form, and what compiles it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pymc import Model

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear import Bilinear
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.forms.compiled_sparse import CompiledSparseLinear
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.sparse_linear import SparseLinear
from pymc_ep.recognise.bilinear import bilinear_sites, recognise_bilinear
from pymc_ep.recognise.families import site_names
from pymc_ep.recognise.latent_gaussian import recognise_latent_gaussian
from pymc_ep.recognise.potentials import field_sites
from pymc_ep.sites import sites

__all__ = ["FormEntry", "entry_of", "forms", "recognise", "register_form"]

Recogniser = Callable[[Model, Sequence[str] | None, Sequence[str]], Any]
Row = tuple[str, str, str, Any]
"""Distribution, link, site by name, and what the engines of the form are asked whether they can work with."""


@dataclass(frozen=True)
class FormEntry:
    """A form in the registry.

    Attributes
    ----------
    form : type
        A frozen dataclass, see `pymc_ep.forms.protocols.Form`.
    compiled : callable
        ``compiled(form, initial hyperparameters, compile_kwargs)`` returns the form's functions of arrays, see
        `pymc_ep.forms.protocols.CompiledForm`.
    recogniser : callable, optional
        None for a form that the recogniser of another one returns.
    rows : callable
        Returns what `pymc_ep.supported` says of the form.
    """

    form: type
    compiled: Callable[..., Any]
    recogniser: Recogniser | None = None
    rows: Callable[[], Sequence[Row]] = lambda: ()


_FORMS: dict[type, FormEntry] = {}


def register_form(
    form: type,
    recogniser: Recogniser | None,
    compiled: Callable[..., Any],
    rows: Callable[[], Sequence[Row]] = lambda: (),
) -> FormEntry:
    """Register a form, the function that reads a model as one, and what compiles it.

    Parameters
    ----------
    form : type
        A frozen dataclass.
    recogniser : callable or None
        ``recogniser(model, latent, wanted)`` returns the form, None where the model is not of that form at all,
        or raises `UnsupportedModelError` where it nearly is. Later registrations are asked first.
    compiled : callable
        ``compiled(form, initial hyperparameters, compile_kwargs)`` returns the form's functions of arrays.
    rows : callable
        Returns rows of the table of `pymc_ep.supported`: distribution, link, name of the site, and the site.

    Raises
    ------
    ValueError
        Where the form is registered already.
    """
    if form in _FORMS:
        raise ValueError(f"A form {form.__name__} is registered already.")
    _FORMS[form] = entry = FormEntry(form, compiled, recogniser, rows)
    return entry


def forms() -> tuple[FormEntry, ...]:
    """Return all registered forms."""
    return tuple(_FORMS.values())


def entry_of(form: Any) -> FormEntry:
    """Return the entry of a form that a recogniser has returned.

    Raises
    ------
    UnsupportedModelError
        Where its type was never registered.
    """
    if type(form) not in _FORMS:
        raise UnsupportedModelError(
            f"The recogniser returned a {type(form).__name__}, which is not registered: call register_form for it."
        )
    return _FORMS[type(form)]


def recognise(model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()) -> Any:
    """Return the form of a model, by the first recogniser that knows it."""
    for entry in reversed(_FORMS.values()):
        form = None if entry.recogniser is None else entry.recogniser(model, latent, wanted)
        if form is not None:
            return form
    raise UnsupportedModelError("No registered form fits the model; pymc_ep.supported() lists them.")


def _likelihoods() -> list[Row]:
    known = sites()
    return [(distribution, link, name, known.get(name)) for distribution, link, name in site_names()]


def _potentials() -> list[Row]:
    fields = [(distribution, "of its prior", potentials, site) for distribution, potentials, site in field_sites()]
    return [*_likelihoods(), *fields]


def _cells() -> list[Row]:
    return [(distribution, link, cells.name, cells) for distribution, link, cells in bilinear_sites()]


register_form(LatentGaussian, recognise_latent_gaussian, CompiledLatentGaussian, _likelihoods)
register_form(SparseLinear, None, CompiledSparseLinear, _potentials)
register_form(Bilinear, recognise_bilinear, CompiledBilinear, _cells)
