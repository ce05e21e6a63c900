"""Names of columns within a parameter: a key of a map may hold the very signs that part one name from the next."""

import re

_SPELT = re.compile("%(25|2C|3A)", re.IGNORECASE)


def decode_column_name(text: str) -> str:
    """The name in which `%`, `,` and `:` were spelt as in addresses."""
    return _SPELT.sub(lambda found: chr(int(found[1], 16)), text)


def read_names(text: str) -> list[str]:
    """The names of a list, with commas between them."""
    return [decode_column_name(part) for part in text.split(",") if part]
