"""The rules that `check_env` tests, and the harness that plays an environment for them."""
