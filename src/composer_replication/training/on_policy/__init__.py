"""Rollouts of the policy while it trains: generation, rewards, hints, metrics."""
