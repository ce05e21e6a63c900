"""What happened, as plain immutable records; bytes to records and back.

Verbs in this room say how far a value is to be trusted:

    as_…     any value of another's, turned into one of our records; never raises, notes what it could not keep
    sound_…  a field that should be of its type, made so
    plain_…  any value as plain JSON, sharing nothing that can change
    clean_…  text as UTF-8 can hold it
    wire_…   a sound value as the encoder must be given it: NaN spelt out
    restore_…  the inverse, on the way back
"""
