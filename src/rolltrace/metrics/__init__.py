"""Sends the metrics of a run to experiment trackers while it is recorded."""
