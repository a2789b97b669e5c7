"""Benchmarks of Sirtaki: ``python -m benchmarks.NAME [--quick]``. See benchmarks/README.md."""
