"""Reinforcement-learning environments for language models in which every rollout leaves a structured trace."""

__version__ = "0.1.0"
