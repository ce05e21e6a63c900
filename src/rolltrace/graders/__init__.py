"""Ways to score a finished rollout, independent of how it was played."""
