"""Parts for testing environments, graders and training loops: scripted policies, and `check_env`."""
