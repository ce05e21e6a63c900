"""Records rollouts of other frameworks. Each module is imported when it is used, and imports its framework then."""
