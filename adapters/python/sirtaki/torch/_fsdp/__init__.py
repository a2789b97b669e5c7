"""Parts of sirtaki.torch.fsdp."""
