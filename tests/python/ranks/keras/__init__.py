"""Cases of sirtaki.keras."""
