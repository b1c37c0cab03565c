"""Rules: one file per idea, each with its algebra, pattern, check and replacement.

Imported as ``fusepass.patterns``. This file holds nothing else on purpose: from the root of a
checkout other libraries can find the folder under its bare name, and importing it must do nothing.
"""
