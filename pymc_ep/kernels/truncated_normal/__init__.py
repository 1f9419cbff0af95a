"""Mass, hazard and moments of a truncated normal distribution."""
