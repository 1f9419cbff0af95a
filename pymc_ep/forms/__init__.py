"""Forms: what a model is, mathematically, with its hyperparameters still symbolic."""
