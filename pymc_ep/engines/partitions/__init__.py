"""Fits beyond one machine: functions that run where parts of the data are, and sums of their results."""

from pymc_ep.engines.partitions.base import Function, Handles, Partitions, added
from pymc_ep.engines.partitions.local import LocalPartitions

__all__ = ["Function", "Handles", "LocalPartitions", "Partitions", "added"]
