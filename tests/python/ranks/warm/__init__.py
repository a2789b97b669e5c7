"""Cases that crash or hang, and one that runs after them on the same warm interpreter."""
