"""What a user can cause: an error's text is one clear sentence, shown without a traceback."""


class UserError(ValueError):
    """Bad input (a key, a file, a value); the message says what is wrong and what is allowed."""


class UnsuitableError(UserError):
    """A method that cannot work with this data or topology; others may."""


class DivergedWarning(UserWarning):
    """Some peers' models have diverged: their weights or outputs hold a NaN or an infinity."""
