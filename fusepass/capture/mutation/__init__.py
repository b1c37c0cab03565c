"""Writes in arms, and inputs that share memory."""
