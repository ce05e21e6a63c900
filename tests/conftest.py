"""What all tests have in common."""

from hypothesis import HealthCheck, settings

# A slow machine is no failure: neither a deadline per example nor the speed of drawing them is asserted.
settings.register_profile("rolltrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rolltrace")
