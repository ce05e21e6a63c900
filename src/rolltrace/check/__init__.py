"""Audits that find silent bugs in a run."""
