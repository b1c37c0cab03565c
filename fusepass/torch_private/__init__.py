"""Wrap every private module and name of torch that fusepass uses in functions of its own.

Nothing else imports them. At the head of each room stand the versions it was read and run on.
"""
