"""Recognisers: from a `pm.Model` to the mathematical form that an engine solves."""

from pymc_ep.recognise.compiled import compiled_form
from pymc_ep.recognise.families import register_family
from pymc_ep.recognise.marginal import latents_missing_from, marginal_model, unconstrained
from pymc_ep.recognise.registry import forms, recognise, register_form

__all__ = [
    "compiled_form",
    "forms",
    "latents_missing_from",
    "marginal_model",
    "recognise",
    "register_family",
    "register_form",
    "unconstrained",
]
