"""What happened, as plain immutable records; bytes to records and back."""
