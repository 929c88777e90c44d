"""What a step trains on: batches, packing, placebos and forks."""
