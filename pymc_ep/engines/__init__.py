"""Parts that all algorithms share: their loop, checkpoints, partitions of the data, options and interruptions."""
