"""JSON for the browser, in which numbers that a browser would round are text."""

from functools import partial

from rolltrace.trace.strict_json import encode_json, to_json_types

encode_response = partial(encode_json, for_browser=True)
to_browser_types = partial(to_json_types, for_browser=True)
