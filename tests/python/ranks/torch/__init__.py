"""Cases of sirtaki.torch: optimizers, compression, local SGD."""
