"""SQL and data frames over runs."""
