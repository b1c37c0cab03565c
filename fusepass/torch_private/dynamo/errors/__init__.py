"""Find where Dynamo's errors arise, and read what they say."""
