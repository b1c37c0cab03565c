"""Wrap private names of Inductor and AOTAutograd: passes, lowerings, kernel calls."""
