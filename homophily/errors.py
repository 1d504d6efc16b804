"""The one exception a user can cause: its text is one clear sentence, shown without a traceback."""


class UserError(ValueError):
    """Bad input (a key, a file, a value); the message says what is wrong and what is allowed."""
