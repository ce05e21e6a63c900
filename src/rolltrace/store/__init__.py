"""A run on disk: its files, their writer and their reader."""
