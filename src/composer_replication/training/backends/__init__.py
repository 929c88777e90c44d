"""Other trainers as hosts of the three channels: what each can carry, and what it refuses by
name."""
