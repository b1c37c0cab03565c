"""Rules, and the driver that applies and verifies them."""
