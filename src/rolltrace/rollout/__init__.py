"""Plays envs with policies: one rollout, one group, many groups."""
