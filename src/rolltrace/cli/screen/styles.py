"""The colours of roles and of ends."""

from rolltrace.trace.stop_reasons import Status

ROLE_STYLES = {"system": "dim bold", "user": "bold blue", "assistant": "bold green", "tool": "bold magenta"}
STATUS_STYLES: dict[str, str] = {Status.OK: "green", Status.ERROR: "bold red", Status.CANCELLED: "yellow"}
