"""Things to act in."""
