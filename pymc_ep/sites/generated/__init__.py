"""Tilted moments of a site as one compiled loop over the sites, made from the graph of its log density."""
