"""Parts of sirtaki.torch.ddp."""
