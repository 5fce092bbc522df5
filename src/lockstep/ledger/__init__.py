"""Where a run's time went: every second of every rank in one account, from the journal alone.

``accounts`` has the accounts, ``what_if`` the same run without one of its costs, ``why`` the
sentences, ``live`` what a driver keeps while the run runs, ``followed`` the accounts of a journal
that grows. Nothing here executes anything of a run.
"""

from lockstep.ledger.accounts import ACCOUNTS, AttemptTimes, Goodput, Interval, Ledger, read_ledger

__all__ = ["ACCOUNTS", "AttemptTimes", "Goodput", "Interval", "Ledger", "read_ledger"]
