"""Every private module and underscore name of torch that fusepass touches, behind names of our own.

Nothing else imports them. At the head of each room stand the versions it was read and run on.
"""
