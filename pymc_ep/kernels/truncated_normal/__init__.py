"""Mass and moments of a truncated normal distribution."""
