"""Capture writes in arms, and find inputs that share memory."""
