"""The rules that `check_env` holds environments to, and the bench on which it plays them."""
