"""The inputs of a step: batches, packing, placebos and forks."""
