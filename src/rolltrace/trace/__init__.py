"""What happened, as plain immutable records; bytes to records and back.

Verbs in this package say what a function does with a value:

    as_…      converts a foreign value to one of our records; never raises, and notes what it could not keep
    coerce_…  gives a field the type that it should have
    clean_…   replaces what UTF-8 cannot hold
    to_wire, wire_…  prepare values for the encoder, which knows no NaN
    transform_…  hashes or redacts text
"""
