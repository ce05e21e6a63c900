"""Where the two chains meet: play and record."""
