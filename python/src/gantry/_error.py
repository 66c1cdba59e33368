from typing import Optional


class GantryError(Exception):
    """A request or an operation failed; the message has the reason and the remedy."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        #: The HTTP status, for a request.
        self.status = status
