"""Errors and warnings that a user can cause. The command line shows an error's message without a traceback."""


class UserError(ValueError):
    """Bad input (a key, a file, a value); the message says what is wrong and what is allowed."""


class UnsuitableError(UserError):
    """The method cannot be used with this data, topology or promise of privacy; other methods may."""


class InUseError(UserError):
    """Another process uses the folder."""


class TrackerWarning(UserWarning):
    """An experiment tracker has failed; the run goes on without it."""


class ConfigWarning(UserWarning):
    """Settings of a run that cannot have the effect that they are made for."""


class DivergedWarning(UserWarning):
    """Some peers' models have diverged: their weights or outputs hold a NaN or an infinity."""
