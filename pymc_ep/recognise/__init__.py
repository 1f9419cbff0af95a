"""Recognisers: from a `pm.Model` to the mathematical form that an engine solves."""

from pymc_ep.recognise.registry import recognise, register_form

__all__ = ["recognise", "register_form"]
