"""Plays groups in worker processes of this machine, or in actors of a Ray cluster."""
