"""Cases of the backend of torch.distributed."""
