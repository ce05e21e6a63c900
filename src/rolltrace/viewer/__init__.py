"""The web server, and the single-file report."""
