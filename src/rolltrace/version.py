"""Which version of Rolltrace this is."""

__version__ = "0.1.0"
