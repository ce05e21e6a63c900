"""Audits of the record itself: is everything there, is it what was written, does it add up."""
