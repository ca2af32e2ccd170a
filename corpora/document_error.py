"""The error for a document, or for the rest of a file, that cannot be read."""


class DocumentError(ValueError):
    """A document, or the rest of a file, cannot be read. `invalid="skip"` leaves out the unreadable part."""

    def __init__(self, kind: str, message: str):
        """kind: "invalid" for a document that is not text, "long" for one above the limit, "damaged" for a file."""
        super().__init__(kind, message)  # both arguments, so that the error can be pickled
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[1])
