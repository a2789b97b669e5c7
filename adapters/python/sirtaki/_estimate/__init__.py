"""The command `sirtaki estimate`."""
