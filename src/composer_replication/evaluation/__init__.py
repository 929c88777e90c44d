"""The judge: measures, with intervals, and does not import training."""
