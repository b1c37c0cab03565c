"""Dynamo's errors: where they arise, and what they say."""
