"""Cases of sirtaki.tensorflow."""
