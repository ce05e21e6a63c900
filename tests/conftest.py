"""What all tests have in common."""

import os

from hypothesis import HealthCheck, settings

# Each process that scores imports its packages anew, which takes longer than what tests have it score.
os.environ.setdefault("ROLLTRACE_WORKERS", "1")

# A slow machine is no failure: neither a deadline per example nor the speed of drawing them is asserted.
settings.register_profile("rolltrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rolltrace")
