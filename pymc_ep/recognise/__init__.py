"""Recognisers: from a `pm.Model` to the mathematical form that an engine solves."""

from pymc_ep.recognise.bilinear import bilinear_sites
from pymc_ep.recognise.compiled import compiled_form
from pymc_ep.recognise.families import register_family, site_names
from pymc_ep.recognise.marginal import latents_missing_from, marginal_model, unconstrained
from pymc_ep.recognise.potentials import field_sites
from pymc_ep.recognise.registry import recognise, register_form

__all__ = [
    "bilinear_sites",
    "compiled_form",
    "field_sites",
    "latents_missing_from",
    "marginal_model",
    "recognise",
    "register_family",
    "register_form",
    "site_names",
    "unconstrained",
]
